package rabbitbroker_test

import (
	"log/slog"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testtls"
)

// A sink and a source connect with TLS to a server whose certificate is signed
// by the authority in the URL, and show a client certificate. Without the
// authority no client connects, unless the URL says insecure=true, which is
// logged.
func TestTLS(t *testing.T) {
	bare := testserver.RabbitMQ(t)
	u, err := url.Parse(bare)
	if err != nil {
		t.Fatal(err)
	}
	a := testtls.New(t)
	secure := *u
	secure.Scheme, secure.Host = "amqps", a.Front(t, u.Host, true)
	testtls.Try(t, a.Cases(t, "heartbeat=10"), func(t *testing.T, query string, log *slog.Logger) (func(*testing.T), error) {
		secure.RawQuery = query
		b, err := rabbitbroker.Open(t.Context(), secure.String(), rabbitbroker.Config{Logger: log})
		return func(t *testing.T) {
			defer func() { _ = b.Close() }()
			server := plain{t, bare}
			topic := server.exchange()
			t.Cleanup(func() {
				_ = server.on(func(ch *amqp.Channel) error {
					_, err := ch.QueueDelete(topic+".all.dead", false, false, false)
					return err
				})
			})
			source, err := b.Source(rabbitbroker.SourceConfig{Queue: topic + ".all"})
			if err != nil {
				t.Fatal(err)
			}
			drivertest.ThereAndBack(t, sink(t, b, rabbitbroker.SinkConfig{}), source, event(topic, "1"))
		}, err
	})
	u.RawQuery = "ca=" + a.CA
	if _, err := rabbitbroker.Open(t.Context(), u.String(), rabbitbroker.Config{}); err == nil || !strings.Contains(err.Error(), "amqps://") {
		t.Errorf("an authority without TLS: %v", err)
	}
}
