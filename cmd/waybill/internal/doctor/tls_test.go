//go:build linux || darwin

package doctor

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testtls"
)

// TestTLSOfEverySink checks that the check of the sink connects with the TLS
// parameters of sink.url, as serve does. An unknown authority is a failure with
// the parameter to add.
func TestTLSOfEverySink(t *testing.T) {
	a, other := testtls.New(t), testtls.New(t)
	// front puts TLS in front of a server, and returns its address.
	front := func(t *testing.T, scheme, address string) *url.URL {
		t.Helper()
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		u.Scheme, u.Host = scheme, a.Front(t, u.Host, true)
		return u
	}
	for name, address := range map[string]func(t *testing.T) *url.URL{
		"nats": func(t *testing.T) *url.URL {
			t.Helper()
			return &url.URL{Scheme: "tls", Host: secureNATS(t, a), Path: "/orders"}
		},
		"redis":    func(t *testing.T) *url.URL { t.Helper(); return front(t, "rediss", testserver.Redis(t)) },
		"rabbitmq": func(t *testing.T) *url.URL { t.Helper(); return front(t, "amqps", testserver.RabbitMQ(t)) },
		"kafka":    func(t *testing.T) *url.URL { t.Helper(); return front(t, "kafka", "kafka://"+testserver.Kafka(t)) },
		"pulsar": func(t *testing.T) *url.URL {
			t.Helper()
			return front(t, "pulsar+ssl", testserver.Pulsar(t)+"/public/default")
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := address(t)
			with := func(authority string) string {
				u.RawQuery = "ca=" + authority + a.Client()
				return u.String()
			}
			w := newWard(t, "sink.url", with(a.CA))
			w.well("sink")
			w.set("sink.url", with(other.CA))
			w.sees("sink", Fail, "certificate signed by unknown authority", "ca=FILE")
		})
	}
}

// secureNATS starts a server with TLS, which starts after its greeting, and
// returns host and port.
func secureNATS(t *testing.T, a *testtls.Authority) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		TLS: true, TLSVerify: true, TLSConfig: a.Server(t, true),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	for !s.ReadyForConnections(time.Second) {
		if t.Context().Err() != nil {
			t.Fatal("the server is not ready")
		}
	}
	return s.Addr().String()
}

// TestAboutCertificates checks that failures because of certificates lead to
// advice about sink.url.
func TestAboutCertificates(t *testing.T) {
	for text, want := range map[string]string{
		"tls: failed to verify certificate: x509: certificate signed by unknown authority":            "ca=FILE",
		"tls: failed to verify certificate: x509: certificate is valid for localhost, not db.example": "name",
		"remote error: tls: certificate required":                                                     "cert=FILE and key=FILE",
		"remote error: tls: bad certificate":                                                          "cert=FILE and key=FILE",
		"connection refused":                                                                          "",
	} {
		if got := (Finding{Type: aboutCertificates(errors.New(text))}); !got.is("", "", want) || (want == "") != (got.Type == "") {
			t.Errorf("%s: %q, want %q", text, got.Type, want)
		}
	}
}
