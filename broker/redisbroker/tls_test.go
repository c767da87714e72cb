package redisbroker_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testtls"
)

// A sink and a source connect with TLS to a server whose certificate is signed
// by the authority in the URL, and show a client certificate. Without the
// authority no client connects, unless the URL says insecure=true, which is
// logged.
func TestTLS(t *testing.T) {
	u, err := url.Parse(testserver.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	a := testtls.New(t)
	secure := *u
	secure.Scheme, secure.Host = "rediss", a.Front(t, u.Host, true)
	cases := a.Cases(t, "db=0")
	cases["insecure by the client's own name"] = testtls.Case{Query: "skip_verify=true" + a.Client(), Works: true, Warns: true}
	testtls.Try(t, cases, func(t *testing.T, query string, log *slog.Logger) (func(*testing.T), error) {
		secure.RawQuery = query
		b, err := redisbroker.Open(t.Context(), secure.String(), redisbroker.Config{Logger: log})
		return func(t *testing.T) {
			defer func() { _ = b.Close() }()
			stream := "test:" + waybill.NewID().String()
			admin := plain(t, u.String())
			defer func() { _ = admin.Del(context.WithoutCancel(t.Context()), stream).Err() }()
			source, err := b.Source(redisbroker.SourceConfig{Group: "billing", Streams: []string{stream}})
			if err != nil {
				t.Fatal(err)
			}
			ev := eventfill.Defaults(waybill.Event{Type: "Ping", Topic: stream, Payload: []byte("{}")})
			drivertest.ThereAndBack(t, sink(t, b, redisbroker.SinkConfig{}), source, waybill.Delivery{Event: ev, Attempt: 1})
		}, err
	})
	u.RawQuery = "ca=" + a.CA
	if _, err := redisbroker.Open(t.Context(), u.String(), redisbroker.Config{}); err == nil || !strings.Contains(err.Error(), "rediss://") {
		t.Errorf("an authority without TLS: %v", err)
	}
}
