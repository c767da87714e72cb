package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/observe"
)

var errBoom = errors.New("boom")

// workerOrder: messages of one aggregate are handled one after another, in
// order, with any number of workers.
func workerOrder(b *bed) {
	const aggregates, n = 20, 15
	var r recorder
	cfg := quick()
	cfg.Workers, cfg.BatchSize = 8, 16
	b.start("ordered", &r, cfg)
	for k := range n {
		var batch []waybill.Delivery
		for a := range aggregates {
			batch = append(batch, b.event(fmt.Sprint("a", a), k))
		}
		b.publish(batch...)
	}
	b.await("all deliveries", func() bool { return r.collected(aggregates, n) })
	b.inOrder(r.all(), aggregates, n)
	if r.bad != nil {
		b.Error(r.bad)
	}
}

// failure: a failed message is redelivered with a higher count. Later messages
// of its aggregate wait for it; other aggregates do not.
func failure(b *bed) { fails(b, quick()) }

// givenBack is like failure, with the failed message returned to the broker if
// the broker supports that.
func givenBack(b *bed) {
	cfg := quick()
	cfg.MaxHold = -1
	fails(b, cfg)
}

func fails(b *bed, cfg broker.ReceiverConfig) {
	var others atomic.Bool
	r := &recorder{}
	r.answer = func(_ context.Context, d waybill.Delivery) error {
		switch {
		case d.AggregateID == "other":
			others.Store(numberOf(&d) == 1)
		case numberOf(&d) == 0 && (d.Attempt < 3 || !others.Load()):
			return errBoom
		}
		return nil
	}
	b.start("failing", r, cfg)
	b.publish(b.event("a", 0), b.event("other", 0))
	b.publish(b.event("a", 1), b.event("other", 1))
	b.publish(b.event("a", 2))
	b.await("all deliveries", func() bool { return r.collected(2, 2) && r.collected(1, 5) })
	var first []int
	last := 0
	for _, d := range r.all() {
		if d.AggregateID != "a" {
			continue
		}
		if numberOf(&d) == 0 {
			if d.Attempt <= last {
				b.Errorf("attempt %d after attempt %d", d.Attempt, last)
			}
			last = d.Attempt
		}
		if !slices.Contains(first, numberOf(&d)) {
			first = append(first, numberOf(&d))
		} else if numberOf(&d) == 0 && len(first) > 1 {
			b.Error("a later message was handled before the one that failed was done")
		}
	}
	if !slices.Equal(first, []int{0, 1, 2}) {
		b.Errorf("the order is %v", first)
	}
	if last < 3 {
		b.Errorf("the last attempt has number %d, want 3 or more", last)
	}
}

// vanished: messages of a consumer that ended without an answer are redelivered
// to it or its successor.
func vanished(b *bed) {
	in := make(chan struct{})
	var once sync.Once
	r := &recorder{answer: func(ctx context.Context, _ waybill.Delivery) error {
		once.Do(func() { close(in) })
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	cfg := quick()
	cfg.DrainTimeout = -1
	stop := b.start("vanishing", r, cfg)
	b.publish(b.event("a", 0), b.event("b", 0))
	<-in
	stop()
	var second recorder
	b.start("vanishing", &second, quick())
	b.await("both messages again", func() bool { return second.collected(2, 1) })
	if !b.can.Counts {
		return
	}
	seen := make(map[waybill.ID]bool)
	for _, d := range r.all() {
		seen[d.ID] = true
	}
	for _, d := range second.all() {
		if seen[d.ID] && d.Attempt < 2 {
			b.Errorf("attempt %d of a message that was delivered before", d.Attempt)
		}
	}
}

// acknowledged: a message that is done is not redelivered.
func acknowledged(b *bed) {
	var r recorder
	stop := b.start("acks", &r, quick())
	var batch []waybill.Delivery
	for a := range 50 {
		batch = append(batch, b.event(fmt.Sprint("a", a), 0))
	}
	b.publish(batch...)
	b.await("all deliveries", func() bool { return r.count() >= len(batch) })
	stop()
	var second recorder
	b.start("acks", &second, quick())
	last := b.event("last", 0)
	b.publish(last)
	b.await("the last", func() bool { return second.count() >= 1 })
	for _, d := range second.all() {
		if d.ID != last.ID {
			b.Errorf("aggregate %s is redelivered", d.AggregateID)
		}
	}
}

// deadLetter: a message that can never succeed is moved to the dead letters
// with the reason, is reported, and does not stop other messages.
func deadLetter(b *bed) {
	var reported atomic.Int32
	cfg := quick()
	cfg.Observe.DeadLettered = func(observe.DeadLetteredInfo) { reported.Add(1) }
	r := &recorder{answer: func(_ context.Context, d waybill.Delivery) error {
		switch numberOf(&d) {
		case 0:
			return waybill.Permanent(fmt.Errorf("no good\r\nx: y: %w", errBoom))
		case 1:
			return fmt.Errorf("other content: %w", waybill.ErrConflict)
		}
		return nil
	}}
	stop := b.start("grim", r, cfg)
	dead := b.event("a", 0)
	dead.Headers = map[string]string{"color": "red"}
	b.publish(dead)
	b.publish(b.event("a", 1))
	b.publish(b.event("a", 2))
	b.await("the message behind them", func() bool {
		return slices.ContainsFunc(r.all(), func(d waybill.Delivery) bool { return numberOf(&d) == 2 })
	})
	letters := b.readFrom(2, func(ctx context.Context) ([]broker.Message, error) { return b.DeadLetters(ctx, "grim") })
	stop()
	if n := reported.Load(); n != 2 {
		b.Errorf("%d were reported, want 2", n)
	}
	m := &letters[0]
	d, err := b.Codec.Decode(m)
	if err != nil {
		b.Fatal(err)
	}
	sameEvent(b, d.Event, dead.Event)
	if reason := wireHeader(m, broker.HeaderDeadReason); !strings.Contains(reason, "boom") || strings.ContainsAny(reason, "\r\n") {
		b.Errorf("the reason is %q", reason)
	}
	if !strings.HasSuffix(wireHeader(m, broker.HeaderDeadSource), "grim") || wireHeader(m, broker.HeaderDeadAttempt) == "" {
		b.Errorf("the dead letter has the headers %v", m.Headers)
	}
	var second recorder
	b.start("grim", &second, quick())
	b.publish(b.event("b", 9))
	b.await("the next message", func() bool { return second.count() >= 1 })
	if second.count() != 1 {
		b.Error("a dead message is redelivered")
	}
}

// unreadable: a message without an id, or that is not an event, is
// dead-lettered and does not stop other messages.
func unreadable(b *bed) {
	b.subscribe("strict")
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	bind := b.Codec.Binding()
	noID := broker.Message{Topic: b.Topic, ContentType: waybill.JSON, Payload: []byte("{}"), Headers: []broker.Header{
		{Name: bind.Attribute("specversion"), Value: "1.0"}, {Name: bind.Attribute("type"), Value: "x"}, {Name: bind.Attribute("source"), Value: "elsewhere"},
	}}
	foreign := noID
	foreign.Headers = append(slices.Clone(noID.Headers), broker.Header{Name: bind.Attribute("id"), Value: "order-1"})
	for _, m := range []broker.Message{noID, {Topic: b.Topic, Payload: []byte("garbage")}, foreign} {
		if err := b.Publish(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	var r recorder
	b.start("strict", &r, quick())
	b.publish(b.event("a", 0))
	b.await("the readable ones", func() bool { return r.count() >= 2 })
	b.readFrom(2, func(ctx context.Context) ([]broker.Message, error) { return b.DeadLetters(ctx, "strict") })
	if !slices.ContainsFunc(r.all(), func(d waybill.Delivery) bool { return d.Headers["ce_id"] == "order-1" && !d.ID.IsZero() }) {
		b.Error("the foreign producer's event was not read")
	}
}

// panics: a panic of the consumer is a failure, and the message is redelivered.
func panics(b *bed) {
	r := &recorder{}
	r.answer = func(_ context.Context, d waybill.Delivery) error {
		if d.Attempt == 1 {
			panic("boom")
		}
		return nil
	}
	// The recorder still counts the message as being handled after the panic;
	// no other event shares its aggregate.
	b.start("panicking", r, quick())
	b.publish(b.event("a", 0))
	b.await("another attempt", func() bool { return r.count() >= 2 })
}

// drain: when the context ends, messages in flight are finished and
// acknowledged.
func drain(b *bed) {
	in, out := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	r := &recorder{answer: func(ctx context.Context, _ waybill.Delivery) error {
		close(in)
		<-out
		ended.Store(ctx.Err() != nil)
		return nil
	}}
	cfg := quick()
	cfg.DrainTimeout = patience
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	src := b.Source("drained", cfg)
	returned := make(chan error, 1)
	go func() { returned <- src.Run(ctx, r) }()
	first := b.event("a", 0)
	b.publish(first)
	<-in
	cancel()
	select {
	case <-returned:
		b.Error("Run returned before the messages in flight were finished")
	// Long enough to catch a Run that does not wait. A slow machine cannot make
	// the check fail.
	case <-time.After(50 * time.Millisecond):
	}
	close(out)
	if err := <-returned; err != nil {
		b.Errorf("Run returned %v", err)
	}
	if ended.Load() {
		b.Error("the consumer's context ended before the drain timeout")
	}
	var second recorder
	b.start("drained", &second, quick())
	b.publish(b.event("b", 0))
	b.await("the next message", func() bool { return second.count() >= 1 })
	for _, d := range second.all() {
		if d.ID == first.ID {
			b.Error("a message that was finished while draining is redelivered")
		}
	}
}
