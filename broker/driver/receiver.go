package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/backoff"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/observe"
)

// absenceGrace is how long messages of a key wait for an overdue message that
// was returned to the broker. Another consumer may have received it.
const absenceGrace = time.Minute

// errStopped is the error of Put after the session has ended.
var errStopped = errors.New("broker: session ended")

// Receiver feeds the messages of one session to the consumer and answers each
// according to its result:
//
//   - done (nil): the message is acknowledged. An inbox group returns nil only
//     after its commit.
//   - unavailable, defer, retry: the message is deferred, for the delay that
//     the error names or for a backoff by the delivery count, and blocks later
//     messages of its aggregate.
//   - permanent (including conflicts and missing handlers), or unreadable: the
//     message is moved to the dead-letter destination, logged as an error,
//     reported to observe.Hooks.DeadLettered, and then acknowledged.
//
// Sessions pass messages to [Receiver.Put]; [Receive] does everything else.
type Receiver struct {
	name     string
	codec    *broker.Codec
	consumer waybill.Sink
	cfg      broker.ReceiverConfig
	session  Session
	giver    Nakker // nil if the broker takes no message back
	log      *slog.Logger

	work     context.Context // the consumer's context; it outlives the source's
	endWork  context.CancelFunc
	stopping chan struct{}
	wake     chan struct{} // signaled when a message may be ready
	workers  chan struct{} // one token per running call of the consumer
	running  sync.WaitGroup
	keeping  sync.WaitGroup
	kept     chan struct{} // closed when no deadline needs extending any more
	taken    atomic.Bool

	mu      sync.Mutex
	line    *line
	changed chan struct{} // closed and replaced whenever a message leaves
}

func newReceiver(ctx context.Context, name string, codec *broker.Codec, c waybill.Sink, cfg broker.ReceiverConfig, s Session) *Receiver {
	r := &Receiver{
		name: name, codec: codec, consumer: c, cfg: cfg, session: s, log: cfg.Logger.With("source", name),
		stopping: make(chan struct{}), wake: make(chan struct{}, 1), workers: make(chan struct{}, cfg.Workers), kept: make(chan struct{}),
		line: newLine(), changed: make(chan struct{}),
	}
	r.giver, _ = s.(Nakker)
	r.work, r.endWork = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// Free returns the number of messages that Put accepts without blocking.
func (r *Receiver) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.cfg.MaxInFlight-r.line.size, 0)
}

// WaitFree blocks until Put accepts at least n messages without blocking, or
// MaxInFlight messages if n is larger, and returns the number that Put accepts.
// It returns 0 when ctx or the session ends.
func (r *Receiver) WaitFree(ctx context.Context, n int) int {
	n = min(n, r.cfg.MaxInFlight)
	for {
		r.mu.Lock()
		free, changed := r.cfg.MaxInFlight-r.line.size, r.changed
		r.mu.Unlock()
		if free >= n {
			return free
		}
		if r.wait(ctx, changed) != nil {
			return 0
		}
	}
}

// Put adds a message. It blocks while MaxInFlight messages are in flight, and
// returns an error when ctx or the session ends. After an error the receiver
// does not have the message, and the broker must redeliver it.
func (r *Receiver) Put(ctx context.Context, in *Incoming) error {
	it := &item{in: in, order: placeOf(in)}
	if it.delivery, it.bad = r.codec.Decode(&in.Message); it.bad == nil {
		if it.key = AggregateKey(&it.delivery.Event); it.key == "" {
			it.key = in.OrderBy
		}
	}
	for {
		r.mu.Lock()
		now := time.Now()
		if until := r.line.blocked(it.key, it.order, now); r.givesBack(it, until.Sub(now)) && !until.IsZero() {
			r.line.turnAway(it.key, it.order, until, until.Add(absenceGrace))
			r.mu.Unlock()
			r.giveBack(it, until.Sub(now))
			return nil
		}
		if r.line.size < r.cfg.MaxInFlight {
			it.number = in.Tenure.enter()
			r.line.insert(it)
			r.taken.Store(true)
			r.mu.Unlock()
			notify(r.wake)
			return nil
		}
		changed := r.changed
		r.mu.Unlock()
		if err := r.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// wait returns nil when a message has left the line.
func (r *Receiver) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-r.stopping:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Drop removes the waiting messages that match, and waits for matching messages
// that are being handled. A session calls Drop when a partition was revoked.
// Drop also returns when ctx ends.
func (r *Receiver) Drop(ctx context.Context, match func(*Incoming) bool) error {
	for {
		r.mu.Lock()
		r.line.remove(match)
		busy := false
		r.line.each(func(it *item) { busy = busy || match(it.in) })
		r.signal()
		changed := r.changed
		r.mu.Unlock()
		notify(r.wake) // the next message of the key may be first now
		if !busy {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start starts handing out messages.
func (r *Receiver) start() {
	r.running.Go(r.dispatch)
	if k, ok := r.session.(AckExtender); ok && k.ExtendInterval() > 0 {
		r.keeping.Go(func() { r.keep(k) })
	}
}

// stop stops handing out messages, waits for running calls of the consumer, and
// returns the remaining messages to the broker if the connection is still
// usable.
func (r *Receiver) stop(orderly bool) {
	close(r.stopping)
	limit := time.AfterFunc(max(r.cfg.DrainTimeout, 0), r.endWork)
	r.running.Wait()
	limit.Stop()
	r.endWork()
	close(r.kept)
	r.keeping.Wait()
	if !orderly || r.giver == nil {
		return
	}
	r.mu.Lock()
	rest := r.line.remove(func(*Incoming) bool { return true })
	r.mu.Unlock()
	for _, it := range rest {
		r.giveBack(it, 0)
	}
}

// dispatch hands ready messages to workers.
func (r *Receiver) dispatch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// A worker first: the longer that takes, the larger the batch.
		select {
		case r.workers <- struct{}{}:
		case <-r.stopping:
			return
		}
		var batch []*item
		for len(batch) == 0 {
			select {
			case <-r.stopping:
				return
			default:
			}
			var next time.Time
			r.mu.Lock()
			batch, next = r.line.take(time.Now(), r.cfg.BatchSize)
			r.mu.Unlock()
			if len(batch) > 0 {
				break
			}
			var due <-chan time.Time
			if !next.IsZero() {
				timer.Reset(time.Until(next))
				due = timer.C
			}
			select {
			case <-r.wake:
			case <-due:
			case <-r.stopping:
				return
			}
		}
		r.running.Go(func() {
			r.handle(batch)
			<-r.workers
			notify(r.wake)
		})
	}
}

// handle passes a batch to the consumer and answers its messages.
func (r *Receiver) handle(batch []*item) {
	var readable []*item
	var deliveries []waybill.Delivery
	verdicts := make([]verdict, 0, len(batch))
	for _, it := range batch {
		if it.bad != nil {
			verdicts = append(verdicts, verdict{it: it, class: waybill.ClassPermanent, err: it.bad})
			continue
		}
		it.delivery.Attempt = it.in.attempt()
		r.mu.Lock()
		it.delivery.Suspect = it.in.Tenure.suspects(it.number, r.cfg.MaxInFlight) || it.redelivered()
		r.mu.Unlock()
		readable = append(readable, it)
		deliveries = append(deliveries, it.delivery)
	}
	began := time.Now()
	var results []error
	if len(deliveries) > 0 {
		results = r.deliver(deliveries)
	}
	took := time.Since(began)
	for i, it := range readable {
		v := r.judge(it, results[i])
		r.mu.Lock()
		it.in.Tenure.done(it.number, r.cfg.MaxInFlight, v.class, v.err)
		r.mu.Unlock()
		verdicts = append(verdicts, v)
	}
	if r.cfg.Observe.Received != nil {
		for _, v := range verdicts {
			r.cfg.Observe.Received(observe.ReceivedInfo{Source: r.name, Class: v.class, Redelivered: v.it.in.attempt() > 1, Took: took})
		}
	}
	r.answer(verdicts)
}

// deliver calls the consumer. After a panic or a wrong number of results, every
// delivery has failed.
func (r *Receiver) deliver(deliveries []waybill.Delivery) (results []error) {
	var failed error
	defer func() {
		if v := recover(); v != nil {
			failed = panics.Recovered(v)
		}
		if failed != nil {
			results = make([]error, len(deliveries))
			for i := range results {
				results[i] = failed
			}
		}
	}()
	results = r.consumer.Deliver(r.work, deliveries)
	if len(results) != len(deliveries) {
		failed = waybill.Unavailable(fmt.Errorf("broker: the consumer returned %d results for %d deliveries", len(results), len(deliveries)))
	}
	return results
}

// verdict is the outcome of one message.
type verdict struct {
	it    *item
	class waybill.Class
	err   error
	delay time.Duration
}

// judge derives the outcome of a message from its result.
func (r *Receiver) judge(it *item, err error) verdict {
	v := verdict{it: it, err: err}
	v.class, v.delay = waybill.Classify(err)
	n := it.in.attempt()
	if v.class == waybill.ClassRetry && r.cfg.MaxAttempts > 0 && n >= r.cfg.MaxAttempts {
		v.class, v.err = waybill.ClassPermanent, fmt.Errorf("attempt %d of %d: %w", n, r.cfg.MaxAttempts, err)
	}
	if v.delay == 0 {
		v.delay = jitter(backoff.After(r.cfg.BackoffBase, r.cfg.BackoffMax, n), r.cfg.BackoffMax)
	}
	return v
}

// notify signals a channel of capacity one without blocking.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
