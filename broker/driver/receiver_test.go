package driver_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
)

var errBoom = errors.New("boom")

// script is a session with scripted answers that records its calls.
type script struct {
	take func(ctx context.Context, r *driver.Receiver) error

	mu      sync.Mutex
	answers []string
	fail    map[string]error // by answer
}

func (s *script) note(format string, v ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, v...)
	s.answers = append(s.answers, text)
	return s.fail[text]
}

func (s *script) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.answers, ", ")
}

func (s *script) Take(ctx context.Context, r *driver.Receiver) error { return s.take(ctx, r) }
func (s *script) Close(context.Context) error                        { return s.note("close") }
func (s *script) DeadLetter(_ context.Context, in *driver.Incoming, _ error) error {
	return s.note("aside %d", in.Order)
}

func (s *script) Ack(ctx context.Context, batch []*driver.Incoming) error {
	for _, in := range batch {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.note("ack %d", in.Order); err != nil {
			return err
		}
	}
	return nil
}

// giver is a script whose broker takes messages back and needs its deadlines
// extended.
type giver struct{ *script }

func (g giver) NakWithDelay(_ context.Context, in *driver.Incoming, delay time.Duration) error {
	return g.note("back %d for %v", in.Order, delay.Round(time.Second))
}

func (g giver) ExtendAck(_ context.Context, batch []*driver.Incoming) error {
	return g.note("keep %d", len(batch))
}
func (g giver) ExtendInterval() time.Duration { return 10 * time.Second }

// consumer handles one message at a time.
type consumer func(ctx context.Context, d waybill.Delivery) error

func (c consumer) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i := range batch {
		errs[i] = c(ctx, batch[i])
	}
	return errs
}

// codec returns the codec of a protocol.
func codec(t testing.TB, b broker.Binding, cfg broker.CodecConfig) *broker.Codec {
	t.Helper()
	c, err := broker.NewCodec(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// message returns a message of an aggregate.
func message(t *testing.T, aggregate string, order uint64, attempt int) *driver.Incoming {
	t.Helper()
	ev := waybill.Event{Type: fmt.Sprint("n", order), AggregateType: "o", AggregateID: aggregate, Payload: []byte("1")}
	d := waybill.Delivery{Event: eventfill.Defaults(ev)}
	m, err := codec(t, broker.Kafka, broker.CodecConfig{}).Encode(&d)
	if err != nil {
		t.Fatal(err)
	}
	return &driver.Incoming{Message: m, Order: order, Attempt: attempt}
}

// pass lets time pass, on the clock of the test's bubble.
func pass(d time.Duration) { <-time.After(d) }

// put returns a Take that puts messages and waits for the end.
func put(ms ...*driver.Incoming) func(context.Context, *driver.Receiver) error {
	return func(ctx context.Context, r *driver.Receiver) error {
		for _, m := range ms {
			if err := r.Put(ctx, m); err != nil {
				return nil
			}
		}
		<-ctx.Done()
		return nil
	}
}

// receive runs a session until stop is called.
func receive(t *testing.T, s driver.Session, c waybill.Sink, cfg broker.ReceiverConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- driver.Receive(ctx, "test", codec(t, broker.Kafka, broker.CodecConfig{}), c, cfg, func(context.Context) (driver.Session, error) { return s, nil })
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Receive returned %v", err)
		}
	}
}

func TestResults(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		hold time.Duration
		want string
	}{
		"done":                       {nil, 0, "ack 1"},
		"settled":                    {waybill.ErrSettled, 0, "ack 1"},
		"dead":                       {waybill.Permanent(errBoom), 0, "aside 1, ack 1"},
		"conflict":                   {waybill.ErrConflict, 0, "aside 1, ack 1"},
		"no handler":                 {waybill.ErrNoHandler, 0, "aside 1, ack 1"},
		"later":                      {waybill.Later(time.Minute, errBoom), 0, "back 1 for 1m0s"},
		"counted with a delay":       {waybill.RetryAfter(time.Hour, errBoom), 0, "back 1 for 1h0m0s"},
		"a short delay is kept here": {waybill.Later(4*time.Second, errBoom), 0, ""},
		"unless it must not":         {waybill.Later(4*time.Second, errBoom), -1, "back 1 for 4s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{take: put(message(t, "a", 1, 1))}
				stop := receive(t, giver{s}, consumer(func(context.Context, waybill.Delivery) error { return c.err }), broker.ReceiverConfig{MaxHold: c.hold})
				synctest.Wait()
				if got := s.said(); got != c.want {
					t.Errorf("the answers are %q, want %q", got, c.want)
				}
				stop()
			})
		})
	}
}

// The backoff grows with the broker's delivery count, within its bounds.
func TestBackoffByDeliveryCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		s := &script{take: put(message(t, "a", 1, 1))}
		stop := receive(t, s, consumer(func(_ context.Context, d waybill.Delivery) error {
			at = append(at, time.Since(began))
			if d.Attempt != len(at) {
				t.Errorf("attempt %d is the delivery's %d", len(at), d.Attempt)
			}
			return errBoom
		}), broker.ReceiverConfig{BackoffBase: time.Second, BackoffMax: 8 * time.Second})
		pass(time.Minute)
		stop()
		for n := 1; n < len(at); n++ {
			usual := min(time.Second<<(n-1), 8*time.Second)
			if gap := at[n] - at[n-1]; gap < usual/2 || gap > min(usual*3/2, 8*time.Second) {
				t.Errorf("the pause after attempt %d is %v, want about %v", n, gap, usual)
			}
		}
		if len(at) < 8 {
			t.Errorf("%d attempts in a minute", len(at))
		}
	})
}

// A deferred message blocks later messages of its aggregate, in memory or at
// the broker, and no other messages.
func TestDeferredMessageBlocksItsAggregate(t *testing.T) {
	for _, hold := range []time.Duration{time.Hour, -1} {
		synctest.Test(t, func(t *testing.T) {
			var handled []string
			var mu sync.Mutex
			c := consumer(func(_ context.Context, d waybill.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				handled = append(handled, d.AggregateID+d.Type)
				if d.Type == "n1" && d.Attempt == 1 {
					return waybill.Later(20*time.Second, errBoom)
				}
				return nil
			})
			s := &script{}
			s.take = func(ctx context.Context, r *driver.Receiver) error {
				_ = r.Put(ctx, message(t, "a", 1, 1))
				synctest.Wait()
				_ = r.Put(ctx, message(t, "a", 2, 1))
				_ = r.Put(ctx, message(t, "b", 3, 1))
				pass(19 * time.Second)
				mu.Lock()
				if got := fmt.Sprint(handled); got != "[an1 bn3]" {
					t.Errorf("before it is due, %s were handled", got)
				}
				mu.Unlock()
				pass(2 * time.Second)
				// The broker redelivers both, the later one first.
				if hold < 0 {
					_ = r.Put(ctx, message(t, "a", 2, 2))
					synctest.Wait()
					_ = r.Put(ctx, message(t, "a", 1, 2))
				}
				<-ctx.Done()
				return nil
			}
			stop := receive(t, giver{s}, c, broker.ReceiverConfig{MaxHold: hold})
			pass(30 * time.Second)
			stop()
			if got := fmt.Sprint(handled); got != "[an1 bn3 an1 an2]" {
				t.Errorf("handled %s", got)
			}
			if hold < 0 && !strings.Contains(s.said(), "back 2") {
				t.Errorf("the messages behind it were not returned: %s", s.said())
			}
		})
	}
}

// The wait for a returned message that never comes back, because another
// consumer has it, is bounded.
func TestAbsenceLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		s.take = func(ctx context.Context, r *driver.Receiver) error {
			_ = r.Put(ctx, message(t, "a", 1, 1))
			pass(11 * time.Second)
			_ = r.Put(ctx, message(t, "a", 2, 1))
			<-ctx.Done()
			return nil
		}
		stop := receive(t, giver{s}, consumer(func(_ context.Context, d waybill.Delivery) error {
			if d.Type == "n1" {
				return waybill.Later(10*time.Second, errBoom)
			}
			return nil
		}), broker.ReceiverConfig{})
		pass(5 * time.Minute)
		if !strings.Contains(s.said(), "ack 2") {
			t.Errorf("the answers are %s", s.said())
		}
		stop()
	})
}

// Messages that are equal in one number of their place and not in another are
// distinct, and ordered by the whole place.
func TestPlacesAreComparedAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(n uint64, a, b uint64, name uint64) *driver.Incoming {
			in := message(t, "a", name, 1)
			in.Order, in.Within = n, [2]uint64{a, b}
			return in
		}
		release := make(chan struct{})
		var order []string
		s := &script{take: put(at(1, 0, 0, 1), at(9, 1<<60, 1, 5), at(9, 1<<60, 0, 4), at(9, 1<<60-1, 7, 3), at(9, 0, 0, 2), at(1<<63, 0, 0, 6))}
		stop := receive(t, s, consumer(func(_ context.Context, d waybill.Delivery) error {
			<-release
			order = append(order, d.Type)
			return nil
		}), broker.ReceiverConfig{})
		synctest.Wait()
		close(release)
		synctest.Wait()
		stop()
		if got := fmt.Sprint(order); got != "[n1 n2 n3 n4 n5 n6]" {
			t.Errorf("handled %s", got)
		}
	})
}

// A message that arrives late goes in front of later messages of its aggregate
// that have not been handled.
func TestLateComerGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var order []string
		s := &script{take: put(message(t, "a", 5, 1), message(t, "a", 7, 1), message(t, "a", 6, 2), message(t, "a", 7, 2))}
		stop := receive(t, s, consumer(func(_ context.Context, d waybill.Delivery) error {
			<-release
			order = append(order, fmt.Sprint(d.Type, "/", d.Attempt))
			return nil
		}), broker.ReceiverConfig{})
		synctest.Wait()
		close(release)
		synctest.Wait()
		stop()
		if got := fmt.Sprint(order); got != "[n5/1 n6/2 n7/2]" {
			t.Errorf("handled %s, want the copy that came last of each, in order", got)
		}
	})
}

// The number of messages in flight never exceeds the limit.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var puts int
		s := &script{}
		s.take = func(ctx context.Context, r *driver.Receiver) error {
			for n := uint64(1); r.Put(ctx, message(t, fmt.Sprint("a", n), n, 1)) == nil; n++ {
				puts++
			}
			return nil
		}
		release := make(chan struct{})
		stop := receive(t, s, consumer(func(context.Context, waybill.Delivery) error { <-release; return nil }), broker.ReceiverConfig{MaxInFlight: 10, Workers: 2, BatchSize: 3})
		synctest.Wait()
		if puts != 10 {
			t.Errorf("%d messages were taken, want 10", puts)
		}
		go stop()
		synctest.Wait()
		close(release)
		synctest.Wait()
	})
}

// When the context ends, messages in flight are finished, waiting messages are
// returned, and the context of a slow consumer ends.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{take: put(message(t, "a", 1, 1), message(t, "a", 2, 1), message(t, "b", 3, 1))}
		var told time.Duration
		began := time.Now()
		stop := receive(t, giver{s}, consumer(func(ctx context.Context, d waybill.Delivery) error {
			if d.Type == "n3" {
				<-ctx.Done()
				told = time.Since(began)
				return ctx.Err()
			}
			pass(2 * time.Second)
			return nil
		}), broker.ReceiverConfig{DrainTimeout: 5 * time.Second, BatchSize: 1})
		synctest.Wait()
		stop()
		if told != 5*time.Second {
			t.Errorf("the consumer's context ended after %v", told)
		}
		got := strings.Split(s.said(), ", ")
		slices.Sort(got)
		// Without a delay: a successor must receive them before later messages
		// of their aggregate.
		if fmt.Sprint(got) != "[ack 1 back 2 for 0s back 3 for 0s close]" {
			t.Errorf("the answers are %v", got)
		}
		if last := s.said(); !strings.HasSuffix(last, "close") {
			t.Errorf("the session was closed before its last answer: %s", last)
		}
	})
}

// A message that cannot be moved to the dead letters is not acknowledged.
func TestDeadLetterThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{take: put(message(t, "a", 1, 1)), fail: map[string]error{"aside 1": errBoom}}
		stop := receive(t, s, consumer(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errBoom) }), broker.ReceiverConfig{})
		pass(5 * time.Second)
		stop()
		if got := s.said(); strings.Contains(got, "ack") || strings.Count(got, "aside") < 2 {
			t.Errorf("the answers are %s", got)
		}
	})
}

func TestMaxAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var aside []error
		s := &script{take: put(message(t, "a", 1, 2))}
		cfg := broker.ReceiverConfig{MaxAttempts: 3, Observe: observe.Hooks{DeadLettered: func(info observe.DeadLetteredInfo) { aside = append(aside, info.Err) }}}
		stop := receive(t, s, consumer(func(context.Context, waybill.Delivery) error { return errBoom }), cfg)
		pass(time.Minute)
		stop()
		if got := s.said(); got != "aside 1, ack 1, close" || len(aside) != 1 || !errors.Is(aside[0], errBoom) {
			t.Errorf("the answers are %s, and %v were reported", got, aside)
		}
	})
}

// If a consumer returns the wrong number of results, no message is done.
func TestWrongNumberOfResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{take: put(message(t, "a", 1, 1))}
		stop := receive(t, s, wrong{}, broker.ReceiverConfig{})
		pass(time.Minute)
		stop()
		if got := s.said(); got != "close" {
			t.Errorf("the answers are %s", got)
		}
	})
}

type wrong struct{}

func (wrong) Deliver(context.Context, []waybill.Delivery) []error { return nil }

// The deadlines of messages in flight are extended, also while the source
// drains.
func TestExtendAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{take: put(message(t, "a", 1, 1), message(t, "a", 2, 1))}
		stop := receive(t, giver{s}, consumer(func(context.Context, waybill.Delivery) error { pass(25 * time.Second); return nil }),
			broker.ReceiverConfig{DrainTimeout: time.Minute})
		pass(15 * time.Second)
		stop()
		if got := s.said(); got != "keep 2, keep 2, ack 1, back 2 for 0s, close" {
			t.Errorf("the answers are %s", got)
		}
	})
}

// When a partition is revoked, waiting messages are dropped, and messages being
// handled are awaited.
func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		dropped := false
		s.take = func(ctx context.Context, r *driver.Receiver) error {
			for n := range uint64(4) {
				_ = r.Put(ctx, message(t, fmt.Sprint("a", n%2), n+1, 1))
			}
			synctest.Wait()
			if err := r.Drop(ctx, func(in *driver.Incoming) bool { return in.Order%2 == 1 }); err != nil {
				t.Error(err)
			}
			dropped = strings.Contains(s.said(), "ack 1")
			<-ctx.Done()
			return nil
		}
		stop := receive(t, s, consumer(func(context.Context, waybill.Delivery) error { pass(time.Second); return nil }), broker.ReceiverConfig{BatchSize: 1})
		pass(time.Minute)
		stop()
		if !dropped {
			t.Error("Drop did not wait for what was being handled")
		}
		if got := s.said(); strings.Contains(got, "ack 3") || !strings.Contains(got, "ack 4") {
			t.Errorf("the answers are %s", got)
		}
	})
}

// A message behind a dropped one does not wait until the dropped one would have
// been due.
func TestDropLetsTheNextOneGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		s.take = func(ctx context.Context, r *driver.Receiver) error {
			for n := range uint64(2) {
				_ = r.Put(ctx, message(t, "a", n+1, 1))
			}
			pass(time.Second)
			if err := r.Drop(ctx, func(in *driver.Incoming) bool { return in.Order == 1 }); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		}
		first := true
		stop := receive(t, s, consumer(func(context.Context, waybill.Delivery) error {
			if first {
				first = false
				return waybill.Later(time.Hour, errBoom)
			}
			return nil
		}), broker.ReceiverConfig{BatchSize: 1})
		pass(time.Minute)
		if got := s.said(); !strings.Contains(got, "ack 2") {
			t.Errorf("the answers are %s", got)
		}
		stop()
	})
}

// A source reconnects by itself, with growing pauses, and ends only after a
// permanent error.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		err := driver.Receive(t.Context(), "test", codec(t, broker.Kafka, broker.CodecConfig{}), consumer(nil), broker.ReceiverConfig{},
			func(context.Context) (driver.Session, error) {
				switch opened++; {
				case opened < 5:
					return nil, waybill.Unavailable(errBoom)
				case opened < 10:
					return &script{take: func(context.Context, *driver.Receiver) error { return errBoom }}, nil
				}
				return nil, waybill.Permanent(errBoom)
			})
		if opened != 10 || !errors.Is(err, errBoom) {
			t.Errorf("opened %d times, then %v", opened, err)
		}
	})
}

// The pause after the nth failed session in a row is 100 ms, 200 ms, 400 ms, …
// at most ReconnectMax, multiplied by a random factor between 0.5 and 1.5. A
// session that cannot be opened counts like one that ends without a message.
// After a session with a message, the pauses start over.
func TestPausesBetweenSessions(t *testing.T) {
	for name, cfg := range map[string]broker.ReceiverConfig{"default": {}, "its own": {ReconnectMax: 3 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const each = 16
				maxPause := cmp.Or(cfg.ReconnectMax, 10*time.Second)
				var at []time.Time
				err := driver.Receive(t.Context(), "test", codec(t, broker.Kafka, broker.CodecConfig{}),
					consumer(func(context.Context, waybill.Delivery) error { return nil }), cfg,
					func(context.Context) (driver.Session, error) {
						at = append(at, time.Now())
						switch n := len(at); {
						case n == each:
							return &script{take: func(ctx context.Context, r *driver.Receiver) error {
								if err := r.Put(ctx, message(t, "a", 1, 1)); err != nil {
									t.Error(err)
								}
								return errBoom
							}}, nil
						case n > 2*each:
							return nil, waybill.Permanent(errBoom)
						case n%2 == 0:
							return &script{take: func(context.Context, *driver.Receiver) error { return errBoom }}, nil
						}
						return nil, waybill.Unavailable(errBoom)
					})
				if !errors.Is(err, errBoom) || len(at) != 2*each+1 {
					t.Fatalf("opened %d times, then %v", len(at), err)
				}
				usual := 100 * time.Millisecond
				for n := 1; n < len(at); n++ {
					if n == each {
						// The last session had a message.
						usual = 100 * time.Millisecond
					}
					if gap := at[n].Sub(at[n-1]); gap < usual/2 || gap > min(usual*3/2, maxPause) {
						t.Errorf("the pause after session %d is %v, want about %v", n, gap, usual)
					}
					usual = min(2*usual, maxPause)
				}
			})
		})
	}
}

func TestReceiverConfig(t *testing.T) {
	err := broker.ReceiverConfig{Workers: -1, BatchSize: -1, MaxInFlight: -1, MaxAttempts: -1, BackoffBase: -1, BackoffMax: -1, ReconnectMax: -1}.Validate()
	for _, field := range []string{"Workers", "BatchSize", "MaxInFlight", "MaxAttempts", "BackoffBase", "BackoffMax", "ReconnectMax"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %v", field, err)
		}
	}
	if err := (broker.ReceiverConfig{}).Validate(); err != nil {
		t.Error(err)
	}
}
