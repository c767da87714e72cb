package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
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
	errFull, errBusy, errOdd := errors.New("full"), errors.New("busy"), errors.New("odd")
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	table := driver.Failures{
		{Name: "full", Class: waybill.ClassPermanent, Why: "w", Match: is(errFull)},
		{Name: "busy", Class: waybill.ClassDefer, Why: "w", Match: is(errBusy)},
		driver.Unreachable(),
	}
	for err, want := range map[error]waybill.Class{
		errFull: waybill.ClassPermanent, errBusy: waybill.ClassDefer, io.ErrUnexpectedEOF: waybill.ClassUnavailable, context.DeadlineExceeded: waybill.ClassUnavailable, context.Canceled: waybill.ClassUnavailable,
		errOdd: waybill.ClassRetry, waybill.Permanent(io.EOF): waybill.ClassPermanent,
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
