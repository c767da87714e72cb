package pulsarbroker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testtls"
)

// The TLS parameters of a URL become client options.
func TestTLSOptions(t *testing.T) {
	a := testtls.New(t)
	var log bytes.Buffer
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	opts, err := options("pulsar+ssl://host:6651,host2:6651?token=canary&ca="+a.CA+"&cert="+a.Cert+"&key="+a.Key, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if opts.URL != "pulsar+ssl://host:6651,host2:6651" || opts.TLSTrustCertsFilePath != a.CA || opts.TLSCertificateFile != a.Cert || opts.TLSKeyFilePath != a.Key ||
		opts.Authentication == nil || !opts.TLSValidateHostname || opts.TLSAllowInsecureConnection || log.Len() > 0 {
		t.Errorf("options %+v, logged %q", opts, log.String())
	}
	opts, err = options("pulsar+ssl://host:6651?insecure=true", cfg)
	if err != nil || !opts.TLSAllowInsecureConnection || opts.TLSValidateHostname || !strings.Contains(log.String(), "INSECURE") {
		t.Errorf("options %+v, %v, logged %q", opts, err, log.String())
	}
	for _, url := range []string{
		"pulsar://host?ca=" + a.CA, "pulsar+ssl://host?ca=/no/such.pem", "pulsar+ssl://host?cert=" + a.Cert, "pulsar+ssl://host?insecure=perhaps", "pulsar+ssl://host?verify=no",
	} {
		if _, err := options(url, cfg); err == nil {
			t.Errorf("%s is taken", url)
		}
	}
}
