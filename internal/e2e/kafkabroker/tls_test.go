package kafkabroker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/internal/testtls"
)

// A sink and a source connect with TLS to a real server, whose certificate is
// signed by the authority in the URL, and show a client certificate.
func TestTLSOfAServer(t *testing.T) {
	a := testtls.New(t)
	address := private.StartSecure(t, testserver.KafkaName, manage.Certificates{Cert: a.ServerCert, Key: a.ServerKey, CA: a.CA})
	testtls.Try(t, a.Cases(t, "tls=true"), func(t *testing.T, query string, log *slog.Logger) (func(*testing.T), error) {
		b, err := kafkabroker.Open(t.Context(), "kafka://"+address+"?"+query, kafkabroker.Config{PublishTimeout: 10 * time.Second, Logger: log, Create: true})
		return func(t *testing.T) {
			defer func() { _ = b.Close() }()
			topic := "tls." + waybill.NewID().String()
			s := sink(t, b, kafkabroker.SinkConfig{})
			source, err := b.Source(kafkabroker.SourceConfig{Group: topic, Topics: []string{topic}})
			if err != nil {
				t.Fatal(err)
			}
			drivertest.ThereAndBack(t, insistent{t, s}, source, event(topic, "a"))
		}, err
	})
}

// insistent is a sink that retries until the topic exists.
type insistent struct {
	t *testing.T
	s *kafkabroker.Sink
}

func (i insistent) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	insist(i.t, i.s, batch[0])
	return []error{nil}
}
