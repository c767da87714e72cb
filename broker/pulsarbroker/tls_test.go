package pulsarbroker_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/internal/testtls"
)

// A sink and a source connect with TLS to a real server, whose certificate is
// signed by the authority in the URL, and show a client certificate.
func TestTLS(t *testing.T) {
	a := testtls.New(t)
	address := private.StartSecure(t, testserver.PulsarName, manage.Certificates{Cert: a.ServerCert, Key: a.ServerKey, CA: a.CA})
	testtls.Try(t, a.Cases(t, ""), func(t *testing.T, query string, log *slog.Logger) (func(*testing.T), error) {
		b, err := pulsarbroker.Open(t.Context(), "pulsar+ssl://"+address+"?"+query, pulsarbroker.Config{PublishTimeout: 5 * time.Second, Logger: log})
		return func(t *testing.T) {
			defer func() { _ = b.Close() }()
			topic := "tls-" + waybill.NewID().String()
			s := sink(t, b, pulsarbroker.SinkConfig{Subscriptions: []string{"billing"}})
			from := source(t, b, pulsarbroker.SourceConfig{Subscription: "billing", Topics: []string{topic}})
			ev := eventfill.Defaults(waybill.Event{Type: "Ping", Topic: topic, Payload: []byte("{}")})
			drivertest.ThereAndBack(t, s, from, waybill.Delivery{Event: ev, Attempt: 1})
		}, err
	})
}
