package driver_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/internal/testtls"
)

func TestTakeTLS(t *testing.T) {
	a := testtls.New(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	base := &tls.Config{ServerName: "base"}
	for name, tc := range map[string]struct {
		query string
		check func(c *tls.Config) bool
		want  string // in the error
	}{
		"nothing":         {"db=3", func(c *tls.Config) bool { return c == base }, ""},
		"an authority":    {"ca=" + a.CA, func(c *tls.Config) bool { return c.RootCAs != nil && c.ServerName == "base" && !c.InsecureSkipVerify }, ""},
		"a certificate":   {"cert=" + a.Cert + "&key=" + a.Key, func(c *tls.Config) bool { return len(c.Certificates) == 1 && c.RootCAs == nil }, ""},
		"insecure":        {"insecure=true", func(c *tls.Config) bool { return c.InsecureSkipVerify && !base.InsecureSkipVerify }, ""},
		"not insecure":    {"insecure=false", func(c *tls.Config) bool { return !c.InsecureSkipVerify }, ""},
		"its other name":  {"skip_verify=true", func(c *tls.Config) bool { return c.InsecureSkipVerify }, ""},
		"perhaps":         {"insecure=maybe", nil, "insecure"},
		"no file":         {"ca=/no/such.pem", nil, "/no/such.pem"},
		"no certificate":  {"ca=" + empty, nil, empty},
		"half a pair":     {"cert=" + a.Cert, nil, "cert and key"},
		"the other half":  {"key=" + a.Key, nil, "cert and key"},
		"not a pair":      {"cert=" + a.Cert + "&key=" + a.ServerKey, nil, "cert and key"},
		"a key in a cert": {"cert=" + a.Key + "&key=" + a.Key, nil, "cert and key"},
	} {
		query, err := url.ParseQuery(tc.query)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := driver.TakeTLS(query, base)
		switch {
		case tc.want != "":
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v does not name %s", name, err, tc.want)
			}
		case err != nil || !tc.check(cfg):
			t.Errorf("%s: %+v, %v", name, cfg, err)
		case query.Encode() != "" && tc.query != "db=3":
			t.Errorf("%s: %q is left", name, query.Encode())
		}
	}
}

func TestWarnInsecure(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	driver.WarnInsecure(log, nil, "rediss://host")
	driver.WarnInsecure(log, &tls.Config{}, "rediss://host") //nolint:gosec // no connection
	if out.Len() > 0 {
		t.Errorf("logged %s", out.String())
	}
	driver.WarnInsecure(log, &tls.Config{InsecureSkipVerify: true}, "rediss://shop:canary@host") //nolint:gosec // no connection
	if text := out.String(); !strings.Contains(text, "WARN") || !strings.Contains(text, "INSECURE") || strings.Contains(text, "canary") {
		t.Errorf("logged %s", text)
	}
}

// A file name is not a secret: an operator must know which file cannot be read.
func TestFilesAreShown(t *testing.T) {
	err := driver.RedactError(errors.New("open /etc/waybill/ca.pem: token canary-token"), "pulsar+ssl://host?ca=/etc/waybill/ca.pem&token=canary-token")
	if text := err.Error(); !strings.Contains(text, "/etc/waybill/ca.pem") || strings.Contains(text, "canary") {
		t.Errorf("it shows %s", text)
	}
}
