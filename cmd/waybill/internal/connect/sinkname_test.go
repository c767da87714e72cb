package connect_test

import (
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// TestSinkName checks that the recorded name of a sink contains its address,
// and no credentials or parameters.
func TestSinkName(t *testing.T) {
	t.Chdir(t.TempDir())
	name := func(url string) string {
		t.Helper()
		text, err := connect.SinkName(settings.Sink{URL: settings.NewSecret(url)})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		for _, secret := range []string{"alice", "canary", "T0KEN"} {
			if strings.Contains(text, secret) {
				t.Errorf("the name of %s has a secret in it: %s", url, text)
			}
		}
		return text
	}
	for _, same := range [][]string{
		{"nats://alice:canary@a:4222,b:4222/ORDERS", "nats://bob:canary2@b:4222,a:4222/ORDERS?create=true", "nats://T0KEN@a:4222,b:4222/ORDERS"},
		{"nats://a:4222", "nats://a:4222/waybill"},
		{"amqp://alice:canary@a/v", "amqp://a/v?create=true"},
		{"pulsar://a:6650/t/n?token=T0KEN", "pulsar://a:6650/t/n"},
		{"log:", "log:payload"},
		{"nats:embedded", "nats:embedded?dir=waybill-jetstream&listen=127.0.0.1:1"},
		{"https://alice:canary@a/hook/T0KEN", "https://a/hook/T0KEN"},
		{"https://a/hook?x=T0KEN&y=1", "https://a/hook?x=T0KEN&ca=/ca.pem&y=1&cert=/c.pem&key=/k.pem&insecure=false"},
	} {
		for _, other := range same[1:] {
			if a, b := name(same[0]), name(other); a != b {
				t.Errorf("%s is %s, and %s is %s: want one name", same[0], a, other, b)
			}
		}
	}
	seen := map[string]string{}
	for _, url := range []string{
		"nats://a:4222", "nats://a:4223", "nats://a:4222/ORDERS", "redis://a:6379/0", "redis://a:6379/1", "kafka://a:9092", "kafka://a:9092,b:9092", "log:",
		"nats:embedded", "nats:embedded?dir=other", "https://a/hook/T0KEN", "https://a/hook/T0KEN2", "https://b/hook/T0KEN", "https://b/hook/T0KEN?key=1", "https://b/hook/T0KEN?key=2", "amqp://a/v", "amqp://a/w",
	} {
		text := name(url)
		if seen[text] != "" {
			t.Errorf("%s and %s are both %s", url, seen[text], text)
		}
		seen[text] = url
	}
	if _, err := connect.SinkName(settings.Sink{}); err == nil {
		t.Error("no sink has a name")
	}
}
