package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"nats://user:canary@host:4222/path?token=canary": "nats://user@host:4222/path",
		"nats://canary@host:4222":                        "nats://…@host:4222",
		"nats://host:4222":                               "nats://host:4222",
		"amqp://u:canary@a:1,amqp://u:canary@b:2":        "amqp://u@a:1,amqp://u@b:2",
		"a:9092,b:9092":                                  "(unreadable URL),(unreadable URL)",
		"nats://u:12,canary@host":                        "(unreadable URL)",
		"nats://u:canary@[::1":                           "(unreadable URL)",
		"user:canary@host":                               "(unreadable URL)",
		"nats://u:can%zzary@host":                        "(unreadable URL)",
	} {
		if got := driver.Redact(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}

func TestRedactError(t *testing.T) {
	for _, url := range []string{
		"nats://u:canary@host", "nats://u:c%61nary@host", "nats://canary@host", "nats://u:canary@[::1", "nats://host?password=canary", "nats://u:canary,x@host",
		"nats://a:b@h1,nats://u:canary@h2",
	} {
		secret := "canary"
		inner := fmt.Errorf("parse %q: %w (canary)", url, io.EOF)
		if strings.Contains(url, ",x@") {
			inner = fmt.Errorf("parse %q: %w (canary,x)", url, io.EOF)
		}
		err := driver.RedactError(waybill.Unavailable(inner), url)
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), secret) || strings.Contains(e.Error(), "c%61nary") {
				t.Errorf("%s: shown in %q", url, e)
			}
		}
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !errors.Is(err, io.EOF) {
			t.Errorf("%s: class %v, %v", url, class, err)
		}
	}
	if driver.RedactError(nil, "x") != nil {
		t.Error("nil is not nil")
	}
}

func TestFailures(t *testing.T) {
	errFull, errBusy, errOdd, errGone := errors.New("full"), errors.New("busy"), errors.New("odd"), errors.New("gone")
	table := driver.Failures{
		{Name: "full", Class: waybill.ClassPermanent, Why: "w", Match: driver.IsAny(errFull)},
		{Name: "busy", Class: waybill.ClassDefer, Why: "w", Match: driver.IsAny(errBusy)},
		driver.Unreachable(driver.IsAny(io.ErrNoProgress, errGone)),
	}
	for err, want := range map[error]waybill.Class{
		errFull: waybill.ClassPermanent, errBusy: waybill.ClassDefer, io.ErrUnexpectedEOF: waybill.ClassUnavailable, context.DeadlineExceeded: waybill.ClassUnavailable, context.Canceled: waybill.ClassUnavailable,
		errGone: waybill.ClassUnavailable, errOdd: waybill.ClassRetry, waybill.Permanent(io.EOF): waybill.ClassPermanent,
	} {
		if class, _ := waybill.Classify(table.Classify(err)); class != want {
			t.Errorf("%v is %v, want %v", err, class, want)
		}
	}
	if table.Classify(nil) != nil {
		t.Error("nil is not nil")
	}
	if got := table.Table(); !strings.Contains(got, "| full | permanent | w |\n") || !strings.Contains(got, "unavailable (broker)") {
		t.Errorf("the table is\n%s", got)
	}
}

// A wave never contains two events of one aggregate, no event follows a failed
// one of its aggregate, and other aggregates are not affected.
func TestWaves(t *testing.T) {
	var batch []waybill.Delivery
	for _, id := range []string{"a", "b", "a", "", "a", "b", ""} {
		batch = append(batch, waybill.Delivery{Event: waybill.Event{Type: "x", AggregateType: "o", AggregateID: id}})
	}
	var waves []string
	results := driver.PublishInOrder(batch, func(wave []int, results []error) {
		waves = append(waves, fmt.Sprint(wave))
		for _, i := range wave {
			if i == 2 {
				results[i] = io.EOF
			}
		}
	})
	if got := strings.Join(waves, " "); got != "[0 1 3 6] [2 5]" {
		t.Errorf("the waves are %s", got)
	}
	for i, err := range results {
		if (err != nil) != (i == 2 || i == 4) {
			t.Errorf("result %d: %v", i, err)
		}
	}
	if class, _ := waybill.Classify(results[4]); class != waybill.ClassDefer {
		t.Errorf("what was not published is %v", class)
	}
}

// TestEventError: a result has the event's id, the class of the table, and no
// secret of the URL.
func TestEventError(t *testing.T) {
	table := driver.Failures{{Name: "full", Class: waybill.ClassPermanent, Why: "w", Match: driver.IsAny(io.ErrShortWrite)}}
	ev := waybill.Event{ID: waybill.NewID()}
	for _, url := range []string{"", "nats://u:canary@host"} {
		err := table.EventError("test", url, &ev, fmt.Errorf("dial %s: %w", url, io.ErrShortWrite))
		class, _ := waybill.Classify(err)
		if class != waybill.ClassPermanent || !errors.Is(err, io.ErrShortWrite) || !strings.HasPrefix(err.Error(), "test: event "+ev.ID.String()+": dial ") {
			t.Errorf("%q: class %v, %v", url, class, err)
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: the password is in %v", url, err)
		}
	}
}

// TestEncoded: an event that cannot be encoded has a result and no message.
func TestEncoded(t *testing.T) {
	topics := func(ev *waybill.Event) (string, error) {
		if ev.Type == "bad" {
			return "", io.EOF
		}
		return "to-" + ev.Type, nil
	}
	c, err := driver.SinkCodec("test", broker.Kafka, "", topics)
	if err != nil {
		t.Fatal(err)
	}
	var batch []waybill.Delivery
	for _, typ := range []string{"other", "a", "bad", "b"} {
		batch = append(batch, waybill.Delivery{Event: eventfill.Defaults(waybill.Event{Type: typ, Payload: []byte("1")})})
	}
	results := make([]error, len(batch))
	var got []string
	for i, m := range driver.Encoded(c, batch, []int{1, 2, 3}, results) {
		got = append(got, fmt.Sprint(i, m.Topic))
	}
	if text := strings.Join(got, " "); text != "1to-a 3to-b" {
		t.Errorf("the messages are %s", text)
	}
	for i, err := range results {
		if errors.Is(err, io.EOF) != (i == 2) {
			t.Errorf("result %d: %v", i, err)
		}
	}
	for range driver.Encoded(c, batch, []int{1, 3}, results) {
		break
	}
	if a, b := driver.Destination(c, &batch[1].Event), driver.Destination(c, &batch[2].Event); a != "to-a" || b != "" {
		t.Errorf("the destinations are %q and %q", a, b)
	}
	_, err = driver.SinkCodec("test", broker.Kafka, "a b", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "test: SinkConfig.EventSource: ") {
		t.Errorf("an invalid source: %v", err)
	}
}

// TestPublishEach: every event has its own result, and the number of concurrent
// calls is limited.
func TestPublishEach(t *testing.T) {
	const limit = 3
	batch := make([]waybill.Delivery, 20)
	for i := range batch {
		batch[i].Attempt = i
	}
	synctest.Test(t, func(t *testing.T) {
		var running, maxRunning atomic.Int64
		results := driver.PublishEach(batch, limit, func(d *waybill.Delivery) error {
			if n := running.Add(1); n > maxRunning.Load() {
				maxRunning.Store(n)
			}
			pass(time.Second)
			running.Add(-1)
			return fmt.Errorf("%d", d.Attempt)
		})
		for i, err := range results {
			if err == nil || err.Error() != fmt.Sprint(i) {
				t.Errorf("result %d: %v", i, err)
			}
		}
		if n := maxRunning.Load(); n != limit {
			t.Errorf("%d calls at once, want %d", n, limit)
		}
	})
	if results := driver.PublishEach(nil, limit, nil); len(results) != 0 {
		t.Errorf("an empty batch has %v", results)
	}
}
