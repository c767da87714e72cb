package pulsarbroker

import (
	"context"
	"errors"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/waybillhq/waybill/internal/panics"
)

// producers keeps one producer per topic. They are made when they are needed, closed when there are too many, and thrown away when they have failed: the
// client sends again, for as long as a producer lives, what nobody waits for any more.
type producers struct {
	create func(topic string) (pulsar.Producer, error)
	start  func(call func()) bool // runs what nobody waits for
	most   int

	mu      sync.Mutex
	byTopic map[string]*producer
	clock   uint64
	closed  bool
}

// producer is one of them. Its fields belong to the pool's lock, but for p and err, which do not change once made is closed.
type producer struct {
	topic string
	made  chan struct{}
	p     pulsar.Producer
	err   error

	users int
	used  uint64
	gone  bool // out of the pool: it is closed, or will be when it is made
}

// newProducers returns a pool for what a sink is configured to be.
func (b *Broker) newProducers(cfg SinkConfig) *producers {
	p := &producers{start: b.start, most: cfg.MaxProducers, byTopic: make(map[string]*producer)}
	p.create = func(topic string) (pulsar.Producer, error) {
		for _, name := range cfg.Subscriptions {
			if err := b.subscribe(topic, name); err != nil {
				return nil, err
			}
		}
		return b.watched(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: !cfg.Batch,
			SendTimeout: -1, // the sink has its own, and closes the producer then
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools = append(b.pools, p)
	return p
}

// watched is a producer that says when it has lost its connection.
type watched struct {
	pulsar.Producer
	lost chan struct{}
}

// watched makes a producer that does not connect again by itself: the client would do so beside its sending, over fields that both use. What is under way fails at
// once instead, and a new producer takes over.
func (b *Broker) watched(opts pulsar.ProducerOptions) (pulsar.Producer, error) {
	w := &watched{lost: make(chan struct{})}
	never, once := uint(0), sync.Once{}
	opts.MaxReconnectToBroker = &never
	opts.BackOffPolicyFunc = func() backoff.Policy { // it is asked for when a connection was lost, and at no other time
		once.Do(func() { close(w.lost) })
		return backoff.NewDefaultBackoff()
	}
	var err error
	if w.Producer, err = b.client.CreateProducer(opts); err != nil {
		return nil, err
	}
	return w, nil
}

// subscribe makes a subscription at the beginning of a topic. Pulsar keeps what a subscription has not acknowledged, and nothing else.
func (b *Broker) subscribe(topic, name string) error {
	c, err := b.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Type: pulsar.Exclusive, ReceiverQueueSize: 1, // it takes nothing from those who are there
	})
	if reports(err, "ConsumerBusy") {
		return nil // it is there, and in use
	}
	if err != nil {
		return err
	}
	c.Close()
	return nil
}

// borrow returns the producer of a topic, which is made if it has to be. It is to be given back.
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

// discard closes a producer that has failed. What others have under way with it fails, too, and is published again.
func (p *producers) discard(e *producer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(e)
}

// remove takes a producer out of the pool and closes it. The pool is locked.
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
	default: // make sees that it is gone
	}
}

// shut closes a producer, for which the client asks the broker. A client that closes at the same moment may panic over a channel of its own.
func (p *producers) shut(e *producer) {
	p.start(func() {
		_ = panics.Call(func() error { e.p.Close(); return nil })
	})
}

// evict closes those that nobody has used for longest while there are too many. The pool is locked.
func (p *producers) evict() {
	for len(p.byTopic) > p.most {
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

// close ends the pool. The client closes the producers that it has.
func (p *producers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, e := range p.byTopic {
		p.remove(e)
	}
}

// send publishes messages, all at once, and returns what became of each. Afterwards the producer is discarded if it is of no more use.
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
	receipts := make(chan receipt, len(messages)) // with room for all: callbacks must not wait for somebody who has left
	for i, m := range messages {
		err := panics.Call(func() error {
			e.p.SendAsync(ctx, m, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				receipts <- receipt{i, confirmed(id, err)}
			})
			return nil
		})
		if err != nil { // the client has closed the producer at this moment
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

// confirmed returns nil if a receipt says where the message is. A broker that drops duplicates answers −1:−1 for what it takes for one, and it
// does so also for a message that it has seen and failed to store.
func confirmed(id pulsar.MessageID, err error) error {
	switch {
	case err != nil:
		return err
	case id == nil || id.LedgerID() < 0 || id.EntryID() < 0:
		return errUnverified
	}
	return nil
}

// breaks reports whether a producer is of no more use after an error.
func breaks(err error) bool {
	return err != nil && !tooLarge(err) && !reports(err, "ProducerQueueIsFull", "ClientMemoryBufferIsFull")
}
