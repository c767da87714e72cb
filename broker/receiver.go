package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/backoff"
	"github.com/waybillhq/waybill/internal/panics"
)

// absenceGrace is how long messages of a key wait for one that was given back and is overdue. Somebody else may have got it.
const absenceGrace = time.Minute

// errStopped is what Put returns when the session is over.
var errStopped = errors.New("broker: the session is over")

// Receiver feeds the messages of one session to the consumer, and answers for them:
//
//   - done (nil): acknowledged. An inbox group says so only after its commit;
//   - down, uncounted, counted: the message is put off, for the delay that the error names or a backoff by the delivery count, and holds back those
//     of its aggregate that come behind it;
//   - dead (a conflict and a missing handler among them), or unreadable: moved to the dead-letter destination, logged as an error, reported to
//     observe.Hooks.DeadLettered, then acknowledged.
//
// Sessions hand messages to [Receiver.Put]; everything else is done by [Receive].
type Receiver struct {
	name     string
	codec    *Codec
	consumer Consumer
	cfg      ReceiverConfig
	session  Session
	giver    Nakker // nil if the broker takes nothing back
	log      *slog.Logger

	work     context.Context // of the consumer: it outlives the source's
	endWork  context.CancelFunc
	stopping chan struct{}
	wake     chan struct{} // there may be something to hand out
	workers  chan struct{} // a token per call of the consumer under way
	running  sync.WaitGroup
	keeping  sync.WaitGroup
	kept     chan struct{} // closed when nothing has to be kept any more
	taken    atomic.Bool

	mu      sync.Mutex
	line    *line
	changed chan struct{} // closed and replaced whenever a message has left
}

func newReceiver(ctx context.Context, name string, codec *Codec, c Consumer, cfg ReceiverConfig, s Session) *Receiver {
	r := &Receiver{
		name: name, codec: codec, consumer: c, cfg: cfg, session: s, log: cfg.Logger.With("source", name),
		stopping: make(chan struct{}), wake: make(chan struct{}, 1), workers: make(chan struct{}, cfg.Workers), kept: make(chan struct{}),
		line: newLine(), changed: make(chan struct{}),
	}
	r.giver, _ = s.(Nakker)
	r.work, r.endWork = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// Free returns how many messages may be put without waiting.
func (r *Receiver) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.cfg.MaxInFlight-r.line.size, 0)
}

// WaitFree waits until at least n messages, or as many as may ever be in hand, may be put without waiting, and returns how many. It returns 0 when
// ctx or the session ends.
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

// Put takes a message in. It waits while there are too many, and returns an error when ctx or the session ends; then the message
// was not taken, and is the broker's to deliver again.
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

// wait returns nil when something has changed.
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

// Drop forgets the messages that match and waits for those of them that are being handled: a partition was taken away. It returns when ctx ends, too.
func (r *Receiver) Drop(ctx context.Context, match func(*Incoming) bool) error {
	for {
		r.mu.Lock()
		r.line.remove(match)
		busy := false
		r.line.each(func(it *item) { busy = busy || match(it.in) })
		r.signal()
		changed := r.changed
		r.mu.Unlock()
		notify(r.wake) // what stood behind them may be the first of its key now
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

// start begins to hand out messages.
func (r *Receiver) start() {
	r.running.Go(r.dispatch)
	if k, ok := r.session.(AckExtender); ok && k.ExtendInterval() > 0 {
		r.keeping.Go(func() { r.keep(k) })
	}
}

// stop hands out nothing more, waits for what is under way, and then gives back the rest if the connection is still good.
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

// dispatch gives workers what may be handled.
func (r *Receiver) dispatch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select { // a worker first: the longer it takes to get one, the larger is the batch
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

// handle gives a batch to the consumer and answers for it.
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
			r.cfg.Observe.Received(r.name, v.class, v.it.in.attempt() > 1, took)
		}
	}
	r.answer(verdicts)
}

// deliver calls the consumer. A panic, or a wrong number of results, is nobody's success.
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

// verdict is what becomes of a message.
type verdict struct {
	it    *item
	class waybill.Class
	err   error
	delay time.Duration
}

// judge says what a result means for its message.
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

// notify wakes whoever waits on a channel with room for one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
