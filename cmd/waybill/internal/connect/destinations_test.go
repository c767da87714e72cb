package connect

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/relay"
)

// to returns a destination.
func to(name, url string, types ...string) settings.Destination {
	return settings.Destination{Name: name, Sink: settings.Sink{URL: settings.NewSecret(url)}, Types: types}
}

// TestSinkNames checks that the recorded name of destinations contains the name
// and the sink of each, and no secrets, and does not depend on their order.
func TestSinkNames(t *testing.T) {
	t.Chdir(t.TempDir())
	name := func(all ...settings.Destination) string {
		t.Helper()
		text, err := SinkNames(&settings.Settings{Destinations: all, Sink: settings.Sink{URL: settings.NewSecret("log:")}})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "canary") {
			t.Errorf("%s has a secret in it", text)
		}
		return text
	}
	a, b := to("billing", "redis://u:canary@h:6379/0"), to("partner", "https://h/canary")
	one := name(a, b)
	if !strings.HasPrefix(one, "destinations billing redis://h:6379/0, partner https://h/") || name(b, a) != one {
		t.Errorf("%q and %q", one, name(b, a))
	}
	if other := name(a, to("partner", "https://h/canary2")); other == one {
		t.Errorf("two sinks have the name %q", one)
	}
	if other := name(to("bills", "redis://h:6379/0"), b); other == one {
		t.Errorf("two destinations have the name %q", one)
	}
	if got := name(); got != "log:" {
		t.Errorf("a relay with one sink has the name %q", got)
	}
}

// TestCheckSinks checks that an invalid sink is reported with its destination,
// and two destinations that would receive the same events at one place.
func TestCheckSinks(t *testing.T) {
	t.Chdir(t.TempDir())
	ofTenant, ofTopic := to("b", "nats://h/S"), to("b", "redis://h/0")
	ofTenant.Tenants, ofTopic.Sink.Topic = []string{"acme"}, "b.{topic}"
	otherTenant := to("a", "nats://h/S")
	otherTenant.Tenants = []string{"globex"}
	for _, c := range []struct {
		a, b settings.Destination
		want string // "": no error
	}{
		{to("a", "log:"), to("b", "log:payload"), ""},
		{to("a", "odd://canary"), to("b", "log:"), "destination a: sink.url: invalid URL: unknown scheme odd"},
		{to("a", "nats://h/S", "X"), to("b", "nats://u:canary@h/S", "X", "Y"), "destinations a and b have one sink"},
		{to("a", "nats://h/S", "X"), to("b", "nats://h/S", "Y"), ""},
		{to("a", "nats://h/S"), to("b", "nats://h/S", "Y"), "destinations a and b have one sink"},
		{to("a", "nats://h/S"), to("b", "nats://h/T"), ""},
		{otherTenant, ofTenant, ""},
		{to("a", "nats://h/S"), ofTenant, "destinations a and b have one sink"},
		{to("a", "redis://h/0"), to("b", "redis://h/0"), "destinations a and b have one sink"},
		{to("a", "redis://h/0"), ofTopic, ""},
		{to("a", "redis://h/0"), to("b", "redis://h/1"), ""},
		{to("a", "amqp://h/v"), to("b", "amqp://h/v?queues=true"), ""},
		{to("a", "https://h/canary"), to("b", "https://h/canary"), "destinations a and b have one sink"},
		{to("a", "nats:embedded", "X"), to("b", "nats:embedded?listen=127.0.0.1:4223", "Y"), "destinations a and b start a server in the same folder"},
		{to("a", "nats:embedded"), to("b", "nats:embedded?dir=other&listen=127.0.0.1:4223"), ""},
	} {
		err := CheckSinks(&settings.Settings{Destinations: []settings.Destination{c.a, c.b}})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s and %s: %v", c.a.Sink.URL, c.b.Sink.URL, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") || hint.Of(err) == ""):
			t.Errorf("%s and %s: %v (%s), want %q", c.a.Sink.URL, c.b.Sink.URL, err, hint.Of(err), c.want)
		}
	}
	if err := CheckSinks(&settings.Settings{}); !errors.Is(err, ErrNoSink) {
		t.Errorf("without a sink and destinations: %v", err)
	}
}

// TestAnUnreachableSinkIsOpenedLater checks that an unreachable sink keeps no
// other waiting, and that an invalid setting is an error.
func TestAnUnreachableSinkIsOpenedLater(t *testing.T) {
	var out, log bytes.Buffer
	cfg := SinkConfig{Out: &out, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	sinks, err := OpenDestinations(t.Context(), []settings.Destination{to("a", "redis://u:canary@127.0.0.1:1/0"), to("b", "log:")}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	batch := []waybill.Delivery{{Event: waybill.Event{ID: waybill.NewID(), Type: "X"}, Attempt: 1}}
	results := sinks[0].Deliver(t.Context(), batch)
	if class, _ := waybill.Classify(results[0]); class != waybill.ClassUnavailable || strings.Contains(results[0].Error(), "canary") {
		t.Errorf("the unreachable sink returned %v", results)
	}
	if results := sinks[1].Deliver(t.Context(), batch); results[0] != nil || !strings.Contains(out.String(), batch[0].ID.String()) {
		t.Errorf("the other sink returned %v and printed %q", results, out.String())
	}
	if !strings.Contains(log.String(), "destination=a") || strings.Contains(log.String(), "canary") {
		t.Errorf("the log is %q", log.String())
	}
	for _, s := range sinks {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = OpenDestinations(t.Context(), []settings.Destination{to("a", "log:"), to("b", "https://h/x")}, cfg)
	if !errors.Is(err, ErrBadSetting) || !strings.HasPrefix(err.Error(), "destination b: sink.secret") {
		t.Errorf("without a secret: %v", err)
	}
}

// TestALateSink checks that a late sink is opened once, by the first call that
// can, that it names the destination of an event in the same way before and
// after that, and that it is what sinks are that may be unreachable.
func TestALateSink(t *testing.T) {
	for _, sink := range []waybill.Sink{(*natsbroker.Sink)(nil), (*kafkabroker.Sink)(nil), (*rabbitbroker.Sink)(nil), (*redisbroker.Sink)(nil), (*pulsarbroker.Sink)(nil)} {
		_, ordered := sink.(relay.OrderedSink)
		_, named := sink.(relay.DestinationSink)
		if _, serial := sink.(relay.SerialSink); !ordered || !named || serial {
			t.Errorf("%T: ordered %v, with destinations %v, serial %v", sink, ordered, named, serial)
		}
	}
	opened, closed, delivered := 0, 0, 0
	down := true
	l := &late{open: func(context.Context) (*Sink, error) {
		if down {
			return nil, errors.New("down")
		}
		opened++
		to := relay.SinkFunc(func(context.Context, waybill.Delivery) error { delivered++; return nil })
		return &Sink{Sink: to, close: func() error { closed++; return nil }}, nil
	}}
	if err := l.close(); err != nil || closed != 0 {
		t.Errorf("closed a sink that is not open: %v", err)
	}
	ev := waybill.Event{ID: waybill.NewID(), Type: "X", Topic: "orders"}
	name := l.Destination(&ev)
	batch := []waybill.Delivery{{Event: ev, Attempt: 1}, {Event: waybill.NewEvent("Y", 1), Attempt: 1}}
	if results := l.Deliver(t.Context(), batch); len(results) != 2 || results[0] == nil || results[1] == nil {
		t.Errorf("a sink that is down returned %v", results)
	}
	down = false
	for range 2 {
		if results := l.Deliver(t.Context(), batch); len(results) != 2 || results[0] != nil || results[1] != nil {
			t.Errorf("an open sink returned %v", results)
		}
	}
	if err := l.close(); err != nil || opened != 1 || closed != 1 || delivered != 4 {
		t.Errorf("opened %d times, closed %d times, delivered %d: %v", opened, closed, delivered, err)
	}
	if l.Destination(&ev) != name || name != "orders" || l.Destination(&batch[1].Event) != "Y" {
		t.Errorf("the destination was %q, and is %q", name, l.Destination(&ev))
	}
}
