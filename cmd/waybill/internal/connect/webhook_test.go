package connect

import (
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testtls"
)

// endpoint starts a webhook with a server certificate of a that requires a
// client certificate of a. It returns the address and a function that returns
// the last query.
func endpoint(t *testing.T, a *testtls.Authority) (*url.URL, func() string) {
	t.Helper()
	var query atomic.Value
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { query.Store(r.URL.RawQuery) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = a.Server(t, true)
	s.StartTLS()
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/hooks/T0KEN"
	return u, func() string { text, _ := query.Load().(string); return text }
}

func post(t *testing.T, cfg settings.Sink, log *slog.Logger) error {
	t.Helper()
	cfg.Secret = settings.NewSecret("unsigned")
	s, err := OpenSink(t.Context(), SinkConfig{Sink: cfg, Logger: log})
	if err != nil {
		return err
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("OrderPlaced", 1)), Attempt: 1}
	return s.Deliver(t.Context(), []waybill.Delivery{d})[0]
}

// TestTLSOfAWebhook checks that the TLS parameters of sink.url secure the
// connection and are not sent. The endpoint receives its own parameters
// unchanged.
func TestTLSOfAWebhook(t *testing.T) {
	a := testtls.New(t)
	u, query := endpoint(t, a)
	at := func(query string) settings.Sink {
		u.RawQuery = query
		return settings.Sink{URL: settings.NewSecret(u.String())}
	}
	own := "b=%20x&key=s3cret&a"
	testtls.Try(t, a.Cases(t, own), func(t *testing.T, query string, log *slog.Logger) (func(*testing.T), error) {
		t.Helper()
		return func(*testing.T) {}, post(t, at(query), log)
	})
	if err := post(t, at("b=%20x&ca="+a.CA+a.Client()+"&a"), nil); err != nil || query() != "b=%20x&a" {
		t.Errorf("the endpoint got %q, %v", query(), err)
	}
	if got, given := splitTLS(&url.URL{RawQuery: own}); got.RawQuery != own || len(given) != 0 {
		t.Errorf("of %s are left %s, and %v are for TLS", own, got.RawQuery, given)
	}
	err := post(t, at("ca="+testtls.New(t).CA+a.Client()), nil)
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), "certificate signed by unknown authority") ||
		!strings.Contains(err.Error(), u.Host) || strings.Contains(err.Error(), "T0KEN") {
		t.Errorf("another authority: class %v: %v", class, err)
	}
	for query, want := range map[string]string{
		"ca=" + filepath.Join(t.TempDir(), "none.pem"): "parameter ca", "cert=" + a.Cert: "cert and key", "insecure=perhaps": "insecure",
	} {
		if err := post(t, at(query), nil); err == nil || !errors.Is(err, ErrBadSetting) || !strings.Contains(err.Error(), want) || hint.Of(err) == "" {
			t.Errorf("%s: %v does not say %s", query, err, want)
		}
	}
	u.Scheme = "http"
	if err := post(t, at("ca="+a.CA), nil); !errors.Is(err, ErrBadURL) || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("without TLS: %v", err)
	}
}

// TestAWarningDoesNotShowTheEndpoint checks that the path of a webhook, often
// its only protection, is not logged.
func TestAWarningDoesNotShowTheEndpoint(t *testing.T) {
	var out strings.Builder
	s, err := OpenSink(t.Context(), SinkConfig{
		Sink:   settings.Sink{URL: settings.NewSecret("https://u:canary1@hooks.example/canary2?insecure=true&sig=canary3"), Secret: settings.NewSecret("unsigned")},
		Logger: slog.New(slog.NewTextHandler(&out, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if text := out.String(); !strings.Contains(text, "INSECURE") || !strings.Contains(text, "https://hooks.example") || strings.Contains(text, "canary") {
		t.Errorf("logged %s", text)
	}
}

// TestWebhooksAtPublicAddressesOnly checks that sink.public-only refuses this
// machine, and that its default does not.
func TestWebhooksAtPublicAddressesOnly(t *testing.T) {
	a := testtls.New(t)
	u, _ := endpoint(t, a)
	u.RawQuery = "ca=" + a.CA + a.Client()
	for _, only := range []bool{false, true} {
		err := post(t, settings.Sink{URL: settings.NewSecret(u.String()), PublicOnly: only}, nil)
		if errors.Is(err, webhook.ErrNotPublic) != only || (err != nil) != only {
			t.Errorf("public addresses only: %v: %v", only, err)
		}
	}
	loaded, err := settings.Load(settings.Sources{Environ: []string{"WAYBILL_SINK=" + u.String(), "WAYBILL_SINK_PUBLIC_ONLY=true"}})
	if err != nil || !loaded.Relays[0].Sink.PublicOnly {
		t.Errorf("%v: the variable does not set it", err)
	}
}
