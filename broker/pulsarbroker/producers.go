package pulsarbroker

import (
	"context"
	"errors"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/waybillhq/waybill/internal/panics"
)

// producers keeps one producer per topic. A producer is created when needed,
// closed when there are too many, and discarded after a failure, because the
// client resends messages as long as a producer lives, even if the relay no
// longer expects them.
type producers struct {
	create func(topic string) (pulsar.Producer, error)
	start  func(call func()) bool // runs a call without waiting for it
	limit  int

	mu      sync.Mutex
	byTopic map[string]*producer
	clock   uint64
	closed  bool
}

// producer is an entry of the pool. The pool's lock guards its fields, except p
// and err, which do not change after made is closed.
type producer struct {
	topic string
	made  chan struct{}
	p     pulsar.Producer
	err   error

	users int
	used  uint64
	gone  bool // removed: closed, or closed as soon as it is made
}

// newProducers returns a pool for a sink config.
func (b *Broker) newProducers(cfg SinkConfig) *producers {
	p := &producers{start: b.start, limit: cfg.MaxProducers, byTopic: make(map[string]*producer)}
	p.create = func(topic string) (pulsar.Producer, error) {
		for _, name := range cfg.Subscriptions {
			if err := b.subscribe(topic, name); err != nil {
				return nil, err
			}
		}
		return b.watched(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: !cfg.Batching,
			SendTimeout: -1, // the sink has its own timeout and closes the producer
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools = append(b.pools, p)
	return p
}

// watched is a producer that reports the loss of its connection.
type watched struct {
	pulsar.Producer
	lost chan struct{}
}

// watched creates a producer that does not reconnect: the client reconnects
// concurrently with sending, and both use the same fields. Instead, messages in
// flight fail at once, and a new producer takes over.
func (b *Broker) watched(opts pulsar.ProducerOptions) (pulsar.Producer, error) {
	w := &watched{lost: make(chan struct{})}
	never, once := uint(0), sync.Once{}
	opts.MaxReconnectToBroker = &never
	// The client asks for the policy only after a connection was lost.
	opts.BackOffPolicyFunc = func() backoff.Policy {
		once.Do(func() { close(w.lost) })
		return backoff.NewDefaultBackoff()
	}
	var err error
	if w.Producer, err = b.client.CreateProducer(opts); err != nil {
		return nil, err
	}
	return w, nil
}

// subscribe creates a subscription at the beginning of a topic. Pulsar keeps
// only messages that a subscription has not acknowledged.
func (b *Broker) subscribe(topic, name string) error {
	c, err := b.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Type: pulsar.Exclusive, ReceiverQueueSize: 1, // takes no messages from existing consumers
	})
	if reports(err, "ConsumerBusy") {
		return nil // exists and is in use
	}
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

// borrow returns the producer of a topic and creates it if needed. The caller
// must give the producer back.
func (p *producers) borrow(ctx context.Context, topic string) (*producer, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	e := p.byTopic[topic]
	if e == nil {
		e = &producer{topic: topic, made: make(chan struct{})}
		if !p.start(func() { p.make(e) }) {
			p.mu.Unlock()
			return nil, errClosed
		}
		p.byTopic[topic] = e
	}
	p.clock++
	e.users, e.used = e.users+1, p.clock
	p.evict()
	p.mu.Unlock()
	select {
	case <-e.made:
		if e.err != nil {
			p.giveBack(e)
			return nil, e.err
		}
		return e, nil
	case <-ctx.Done():
		p.giveBack(e)
		return nil, context.Cause(ctx)
	}
}

func (p *producers) make(e *producer) {
	e.p, e.err = p.create(e.topic)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(e.made)
	switch {
	case e.err != nil:
		p.remove(e)
	case e.gone:
		p.shut(e)
	}
}

func (p *producers) giveBack(e *producer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.users--
}

// discard closes a producer that has failed. Other messages in flight on it
// fail as well and are published again.
func (p *producers) discard(e *producer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(e)
}

// remove removes a producer from the pool and closes it. The caller holds p.mu.
func (p *producers) remove(e *producer) {
	if p.byTopic[e.topic] == e {
		delete(p.byTopic, e.topic)
	}
	if e.gone {
		return
	}
	e.gone = true
	select {
	case <-e.made:
		if e.err == nil {
			p.shut(e)
		}
	default: // make notices that it is gone
	}
}

// shut closes a producer, which sends a request to the broker. A client that is
// being closed concurrently may panic over one of its channels.
func (p *producers) shut(e *producer) {
	p.start(func() {
		_ = panics.Call(func() error { e.p.Close(); return nil })
	})
}

// evict closes the least recently used producers while there are too many. The
// caller holds p.mu.
func (p *producers) evict() {
	for len(p.byTopic) > p.limit {
		var oldest *producer
		for _, e := range p.byTopic {
			if e.users == 0 && (oldest == nil || e.used < oldest.used) {
				oldest = e
			}
		}
		if oldest == nil {
			return // all are in use
		}
		p.remove(oldest)
	}
}

// close closes the pool. The client closes its producers.
func (p *producers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, e := range p.byTopic {
		p.remove(e)
	}
}

// send publishes all messages at once and returns one result for each. A
// producer that is unusable afterwards is discarded.
func (p *producers) send(ctx context.Context, topic string, messages []*pulsar.ProducerMessage) []error {
	results := make([]error, len(messages))
	e, err := p.borrow(ctx, topic)
	if err != nil {
		for i := range results {
			results[i] = err
		}
		return results
	}
	defer p.giveBack(e)
	type receipt struct {
		i   int
		err error
	}
	// With room for all: callbacks must not block after send has returned.
	receipts := make(chan receipt, len(messages))
	for i, m := range messages {
		err := panics.Call(func() error {
			e.p.SendAsync(ctx, m, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				receipts <- receipt{i, confirmed(id, err)}
			})
			return nil
		})
		if err != nil { // the client is closing the producer
			receipts <- receipt{i, errors.Join(pulsar.ErrProducerClosed, err)}
		}
		results[i] = errUnanswered
	}
	var lost <-chan struct{}
	if w, ok := e.p.(*watched); ok {
		lost = w.lost
	}
	broken, why := false, error(nil)
	for range messages {
		select {
		case r := <-receipts:
			results[r.i] = r.err
			broken = broken || breaks(r.err)
			continue
		case <-lost:
			broken, why = true, errSilent
		case <-ctx.Done():
			broken, why = true, context.Cause(ctx)
		}
		break
	}
	for i := range results {
		if errors.Is(results[i], errUnanswered) {
			results[i] = why
		}
	}
	if broken {
		p.discard(e)
	}
	return results
}

// confirmed returns nil if a receipt has a message id. A broker with
// deduplication answers −1:−1 for a suspected duplicate, including a message
// that it has seen and failed to store.
func confirmed(id pulsar.MessageID, err error) error {
	switch {
	case err != nil:
		return err
	case id == nil || id.LedgerID() < 0 || id.EntryID() < 0:
		return errUnverified
	}
	return nil
}

// breaks reports whether a producer is unusable after an error.
func breaks(err error) bool {
	return err != nil && !tooLarge(err) && !reports(err, "ProducerQueueIsFull", "ClientMemoryBufferIsFull")
}
