package connect

import (
	"bytes"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testtls"
)

// TestTLSInTheURL checks that the certificate parameters of sink.url reach the
// client library, beside this program's own parameters.
func TestTLSInTheURL(t *testing.T) {
	a := testtls.New(t)
	for name, tc := range map[string]struct{ address, scheme, own string }{
		"redis":    {testserver.Redis(t), "rediss", "existing=true"},
		"rabbitmq": {testserver.RabbitMQ(t), "amqps", "create=true"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(tc.address)
			if err != nil {
				t.Fatal(err)
			}
			u.Scheme, u.Host = tc.scheme, a.Front(t, u.Host, true)
			client := "&cert=" + a.Cert + "&key=" + a.Key
			for query, works := range map[string]bool{
				tc.own + "&ca=" + a.CA + client: true, tc.own + client: false, "ca=" + a.CA: false, "insecure=true" + client: true,
			} {
				var log bytes.Buffer
				u.RawQuery = query
				s, err := OpenSink(t.Context(), SinkConfig{Sink: settings.Sink{URL: settings.NewSecret(u.String())}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if (err == nil) != works {
					t.Errorf("%s: %v", query, err)
				}
				if strings.Contains(log.String(), "INSECURE") != strings.Contains(query, "insecure") {
					t.Errorf("%s: logged %q", query, log.String())
				}
				if err == nil {
					_ = s.Close()
				}
			}
		})
	}
	at, err := JetStreamOf(settings.Sink{URL: settings.NewSecret("nats://shop:secret@one:4222,two:4222/orders?create=true&replicas=3&ca=/ca.pem&creds=/shop.creds")})
	if want := "nats://shop:secret@one:4222,nats://shop:secret@two:4222?ca=%2Fca.pem&creds=%2Fshop.creds"; err != nil || at.Servers != want || at.Stream != "orders" || at.Replicas != 3 {
		t.Errorf("%+v, %v", at, err)
	}
}
