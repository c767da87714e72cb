package relaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
)

// failChecks are the checks of failing deliveries.
func failChecks[T any]() []check[T] {
	return []check[T]{
		{name: "failing", run: failing[T]},
		{name: "max_attempts", run: maxAttempts[T]},
		{name: "permanent", run: permanent[T]},
		{name: "later_and_retry_after", run: laterAndRetryAfter[T]},
		{name: "panic", run: panics[T]},
		{name: "settle_fails", run: settleFails[T]},
		{name: "settle_answer_lost", run: settleAnswerLost[T]},
		{name: "undecodable", run: undecodable[T], needs: func(f drivertest.Features) bool { return f.StoredHeaders }, why: "its rows cannot be broken"},
		{name: "wrong_number_of_results", run: wrongResults[T]},
	}
}

var errBoom = errors.New("boom")

// failing: a failing handler leaves its event pending with one attempt, its
// error, and a due time in the future; other aggregates continue.
func failing[T any](b *env[T]) {
	r := &recorder{answer: func(d waybill.Delivery) error {
		if d.AggregateID == "bad" {
			return errBoom
		}
		return nil
	}}
	cfg := b.quick()
	cfg.BackoffBase, cfg.BackoffMax = time.Hour, time.Hour
	evs := []waybill.Event{event("bad", 0), event("bad", 1), event("good", 0), event("good", 1), event("", 0)}
	b.start(r.sink(), cfg)
	b.write(evs...)
	b.await("the others are settled", func() bool {
		return b.state(evs[0].ID) == "delayed" && b.state(evs[2].ID) == "delivered" && b.state(evs[3].ID) == "delivered" && b.state(evs[4].ID) == "delivered"
	})
	row := b.find(evs[0].ID)
	if row.Attempts != 1 || row.LastError != "boom" || !row.Holds {
		b.Errorf("the failed event has attempts %d, error %q, holds %v; want 1, boom, true", row.Attempts, row.LastError, row.Holds)
	}
	if due := row.DueAt.Sub(row.CreatedAt); due < 25*time.Minute {
		b.Errorf("it is due %v after it was written, want about an hour", due)
	}
	if b.state(evs[1].ID) != "ready" || len(r.of(evs[1].ID)) != 0 {
		b.Errorf("its successor is %s and was delivered %d times", b.state(evs[1].ID), len(r.of(evs[1].ID)))
	}
	b.write(event("good", 2))
	b.await("more of the others", func() bool { return len(r.payloads("good")) == 3 })
}

// maxAttempts: an event that always fails is delivered three times, and is then
// dead with its last error.
func maxAttempts[T any](b *env[T]) {
	r := &recorder{answer: func(d waybill.Delivery) error { return fmt.Errorf("failure %d", d.Attempt) }}
	cfg := b.quick()
	cfg.MaxAttempts = 3
	evs := []waybill.Event{event("a", 0), event("", 1)}
	b.start(r.sink(), cfg)
	b.write(evs...)
	for _, ev := range evs {
		b.await("dead", func() bool { return b.state(ev.ID) == "dead" })
		if n := len(r.of(ev.ID)); n != 3 {
			b.Errorf("%d calls, want 3", n)
		}
		for i, d := range r.of(ev.ID) {
			if d.Attempt != i+1 {
				b.Errorf("call %d has attempt %d", i+1, d.Attempt)
			}
		}
		if row := b.find(ev.ID); row.Attempts != 3 || row.LastError != "failure 3" {
			b.Errorf("dead with attempts %d and error %q", row.Attempts, row.LastError)
		}
	}
	// The aggregate continues.
	r.tell(nil)
	b.write(event("a", 1))
	b.await("the next one", func() bool { return len(r.payloads("a")) == 4 })
	if lines := b.logs.find("ERROR", "event is dead", evs[0].ID.String()); len(lines) != 1 {
		b.Errorf("%d lines at level ERROR say that it is dead, want 1", len(lines))
	}
}

// permanent: a permanent error makes the event a dead letter at once.
func permanent[T any](b *env[T]) {
	r := &recorder{answer: func(d waybill.Delivery) error {
		if string(d.Payload) == "0" {
			return waybill.Permanent(errBoom)
		}
		return nil
	}}
	evs := []waybill.Event{event("a", 0), event("a", 1)}
	b.start(r.sink(), b.quick())
	b.write(evs...)
	b.await("both are settled", func() bool { return b.state(evs[0].ID) == "dead" && b.state(evs[1].ID) == "delivered" })
	if n := r.count(); n != 2 {
		b.Errorf("%d calls, want 2", n)
	}
}

// laterAndRetryAfter: Later spends no attempt, RetryAfter does, and both set
// the delay.
func laterAndRetryAfter[T any](b *env[T]) {
	var calls atomic.Int32
	r := &recorder{answer: func(waybill.Delivery) error {
		switch calls.Add(1) {
		case 1, 2:
			return waybill.Later(time.Millisecond, errors.New("not now"))
		case 3:
			return waybill.RetryAfter(time.Millisecond, errBoom)
		}
		return nil
	}}
	cfg := b.quick()
	cfg.BackoffBase, cfg.BackoffMax = time.Hour, time.Hour
	ev := event("a", 0)
	b.start(r.sink(), cfg)
	b.write(ev)
	b.await("delivered", func() bool { return b.state(ev.ID) == "delivered" })
	var attempts []int
	for _, d := range r.of(ev.ID) {
		attempts = append(attempts, d.Attempt)
	}
	if got := fmt.Sprint(attempts); got != "[1 1 1 2]" {
		b.Errorf("attempts %s, want [1 1 1 2]", got)
	}
}

// panics: a panic is a counted attempt, the process continues, and the stack is
// in the log and not in the row.
func panics[T any](b *env[T]) {
	r := &recorder{answer: func(d waybill.Delivery) error {
		if d.Attempt == 1 && string(d.Payload) == "0" {
			panic("the sky is falling")
		}
		return nil
	}}
	cfg := b.quick()
	cfg.BackoffBase, cfg.BackoffMax = 2*time.Second, 2*time.Second
	evs := []waybill.Event{event("a", 0), event("b", 1)}
	b.start(r.sink(), cfg)
	b.write(evs...)
	b.await("it is deferred", func() bool { return b.state(evs[0].ID) == "delayed" })
	if row := b.find(evs[0].ID); row.Attempts != 1 || row.LastError != "panic: the sky is falling" {
		b.Errorf("attempts %d, error %q", row.Attempts, row.LastError)
	}
	b.await("both are delivered", func() bool { return b.state(evs[0].ID) == "delivered" && b.state(evs[1].ID) == "delivered" })
	if lines := b.logs.find("panicked", "fail.go"); len(lines) == 0 {
		b.Error("the stack is not in the log")
	}
}

// broken is a store whose settlements fail as the test demands.
type broken struct {
	driver.Relay
	settle func(ctx context.Context, s driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error)
}

func (r *broken) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	return r.settle(ctx, s, func() (driver.Settled, error) { return r.Relay.Settle(ctx, s) })
}

// settleFails: a settlement that fails after the delivery never counts as a
// failed attempt, and the event is delivered again at most once per failure.
func settleFails[T any](b *env[T]) {
	var failures atomic.Int32
	db := &broken{Relay: b.DB.Relay, settle: func(_ context.Context, _ driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
		if failures.Add(1) <= 3 {
			return driver.Settled{}, errors.New("the database is unavailable")
		}
		return next()
	}}
	r := &recorder{}
	evs := []waybill.Event{event("a", 0), event("a", 1), event("", 2)}
	b.startOn(db, r.sink(), b.quick())
	b.write(evs...)
	b.awaitEmpty()
	for _, ev := range evs {
		if n := len(r.of(ev.ID)); n > 4 {
			b.Errorf("%d deliveries after 3 failed settlements", n)
		}
		if row := b.find(ev.ID); row.State != store.Delivered || row.Attempts != 0 {
			b.Errorf("the event is %s with %d attempts", row.State, row.Attempts)
		}
	}
	b.wantOrder(r.all())
}

// settleAnswerLost: the settlement succeeded, and only its answer was lost.
func settleAnswerLost[T any](b *env[T]) {
	var lost atomic.Bool
	db := &broken{Relay: b.DB.Relay, settle: func(_ context.Context, _ driver.Settlement, next func() (driver.Settled, error)) (driver.Settled, error) {
		done, err := next()
		if err == nil && !lost.Swap(true) {
			return driver.Settled{}, errors.New("the answer was lost")
		}
		return done, err
	}}
	r := &recorder{}
	ev := event("a", 0)
	b.startOn(db, r.sink(), b.quick())
	b.write(ev)
	b.await("the answer was lost", lost.Load)
	next := event("a", 1)
	b.write(next)
	b.await("the next one is settled", func() bool { return b.state(next.ID) == "delivered" })
	b.wantOnce(r, []waybill.Event{ev, next})
}

// undecodable: an undecodable row is dead with a reason, and others continue.
func undecodable[T any](b *env[T]) {
	evs := []waybill.Event{event("a", 0), event("a", 1), event("b", 2)}
	for i := range evs {
		evs[i].Headers = map[string]string{"k": "v"}
	}
	b.write(evs...)
	if err := b.SetHeaders(b.Context(), evs[0].ID, `{"k": [1, 2]}`); err != nil {
		b.Fatal(err)
	}
	r := &recorder{}
	b.start(r.sink(), b.quick())
	b.await("all are settled", func() bool {
		return b.state(evs[0].ID) == "dead" && b.state(evs[1].ID) == "delivered" && b.state(evs[2].ID) == "delivered"
	})
	if row := b.find(evs[0].ID); !strings.Contains(row.LastError, "decoded") || row.Attempts != 0 {
		b.Errorf("dead with error %q and %d attempts", row.LastError, row.Attempts)
	}
	if n := len(r.of(evs[0].ID)); n != 0 {
		b.Errorf("it was delivered %d times", n)
	}
}

// short is a sink that returns too few results at first.
type short struct {
	*recorder
	good atomic.Bool
}

func (s *short) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	if !s.good.Load() {
		return make([]error, len(batch)+1)
	}
	results := make([]error, len(batch))
	for i := range batch {
		results[i] = s.take(batch[i])
	}
	return results
}

// wrongResults: a wrong number of results settles nothing.
func wrongResults[T any](b *env[T]) {
	s := &short{recorder: &recorder{}}
	evs := []waybill.Event{event("a", 0), event("b", 1), event("", 2)}
	b.start(s, b.quick())
	b.write(evs...)
	b.await("the wrong number of results is logged", func() bool { return len(b.logs.find("ERROR", "nothing is settled")) >= 2 })
	if st := b.stats(); st.Ready != 3 || st.Failed != 0 || st.Dead != 0 {
		b.Errorf("the outbox: %s; want 3 ready", b.picture())
	}
	s.good.Store(true)
	b.awaitEmpty()
	b.wantOnce(s.recorder, evs)
	for _, ev := range evs {
		if row := b.find(ev.ID); row.Attempts != 0 {
			b.Errorf("%d attempts were spent", row.Attempts)
		}
	}
}

var _ waybill.Sink = (*short)(nil)
