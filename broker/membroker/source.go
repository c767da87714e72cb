package membroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source].
type SourceConfig struct {
	// Durable is the name of the durable consumer. Sources with the same
	// Durable share its messages, and a later source continues where the last
	// one stopped. Required.
	Durable string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Durable.
	Name string
	// Topics are the topics to consume, from the beginning. Defaults to all
	// topics except dead letters.
	Topics []string
	// DeadLetter is the topic for dead letters. Defaults to Durable + ".dead".
	DeadLetter string
	// Receive configures how messages are passed to the consumer. Defaults to
	// the defaults of [broker.ReceiverConfig].
	Receive broker.ReceiverConfig
}

// deadSuffix is the suffix of dead-letter topics.
const deadSuffix = ".dead"

// group is a durable consumer.
type group struct {
	next    int                 // index of the first message that was not delivered
	pending map[uint64]*pending // delivered and not acknowledged
}

// pending is a message that was delivered and not acknowledged.
type pending struct {
	*stored
	count int
	due   time.Time // when it is redelivered
	owner *session
}

// Source consumes messages.
type Source struct {
	b   *Broker
	cfg SourceConfig
}

// Source returns a source and creates its durable consumer.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if cfg.Durable == "" {
		errs = append(errs, errors.New("SourceConfig.Durable: empty"))
	}
	errs = append(errs, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("membroker: %w", err)
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Durable
	}
	if cfg.DeadLetter == "" {
		cfg.DeadLetter = cfg.Durable + deadSuffix
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.groups[cfg.Durable] == nil {
		b.groups[cfg.Durable] = &group{pending: make(map[uint64]*pending)}
	}
	return &Source{b: b, cfg: cfg}, nil
}

// Name implements [broker.Source].
func (s *Source) Name() string { return s.cfg.Name }

// Run implements [broker.Source].
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.b.codec, c, s.cfg.Receive, func(context.Context) (driver.Session, error) {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		if s.b.down {
			return nil, waybill.Unavailable(errDown)
		}
		return &session{b: s.b, cfg: &s.cfg, group: s.b.groups[s.cfg.Durable], outage: s.b.outages}, nil
	})
}

// wants reports whether a topic is consumed.
func (c *SourceConfig) wants(topic string) bool {
	if len(c.Topics) > 0 {
		return slices.Contains(c.Topics, topic)
	}
	return topic != c.DeadLetter && !strings.HasSuffix(topic, deadSuffix)
}

// session is one connection of a source.
type session struct {
	b      *Broker
	cfg    *SourceConfig
	group  *group
	outage int // number of outages at the start; a new one ends the session
}

// Take implements [driver.Session].
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
	for {
		free := r.WaitFree(ctx, 1)
		if ctx.Err() != nil {
			return nil
		}
		batch, next, changed, err := s.deliver(free)
		if err != nil {
			return err
		}
		for _, in := range batch {
			if err := r.Put(ctx, in); err != nil {
				return nil //nolint:nilerr // ctx has ended; Close returns the messages that were not put
			}
		}
		if len(batch) > 0 {
			continue
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// deliver returns the messages to deliver now, and when there may be more: at
// next, or when changed is closed.
func (s *session) deliver(limit int) (batch []*driver.Incoming, next time.Time, changed <-chan struct{}, err error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.outages != s.outage || b.down {
		return nil, time.Time{}, nil, errDown
	}
	now := time.Now()
	due, next := s.due(limit, now)
	for _, p := range due[:min(len(due), limit)] {
		if wait := s.delayed(p); wait > 0 {
			if p.due = now.Add(wait); p.due.Before(next) {
				next = p.due
			}
			continue
		}
		p.count++
		p.due, p.owner = now.Add(b.cfg.AckWait), s
		if b.happens(b.faults.DropDelivery) {
			if p.due.Before(next) {
				next = p.due
			}
			continue
		}
		batch = append(batch, s.incoming(p))
		if b.happens(b.faults.Duplicate) {
			p.count++
			batch = append(batch, s.incoming(p))
		}
	}
	b.reorder(batch)
	return batch, next, b.changed, nil
}

// due returns the messages that are due, in order, and the time at which the
// next one is. It takes new messages from the log if fewer than limit are due.
func (s *session) due(limit int, now time.Time) (due []*pending, next time.Time) {
	next = now.Add(time.Hour)
	for _, p := range s.group.pending {
		if !p.due.After(now) {
			due = append(due, p)
		} else if p.due.Before(next) {
			next = p.due
		}
	}
	slices.SortFunc(due, func(x, y *pending) int { return cmp.Compare(x.seq, y.seq) })
	for ; len(due) < limit && s.group.next < len(s.b.log); s.group.next++ {
		if m := s.b.log[s.group.next]; s.cfg.wants(m.message.Topic) {
			p := &pending{stored: m}
			s.group.pending[m.seq] = p
			due = append(due, p)
		}
	}
	return due, next
}

// reorder swaps neighbors, so that a message moves by at most one place.
func (b *Broker) reorder(batch []*driver.Incoming) {
	for i := 1; i < len(batch); i++ {
		if b.happens(b.faults.Reorder) {
			batch[i-1], batch[i] = batch[i], batch[i-1]
			i++
		}
	}
}

// delayed returns the delay of a message.
func (s *session) delayed(p *pending) time.Duration {
	if p.count > 0 || !p.due.IsZero() || !s.b.happens(s.b.faults.Delay) {
		return 0
	}
	return time.Duration(s.b.random.Int64N(int64(s.b.faults.MaxDelay))) + 1
}

func (s *session) incoming(p *pending) *driver.Incoming {
	return &driver.Incoming{Message: p.message, Order: p.seq, Attempt: p.count, Handle: p.seq}
}

// answer calls fn for a pending message.
func (s *session) answer(in *driver.Incoming, fn func(p *pending)) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.outages != s.outage || s.b.down {
		return errDown
	}
	if p := s.group.pending[in.Order]; p != nil {
		fn(p)
	}
	return nil
}

// Ack implements [driver.Session].
func (s *session) Ack(_ context.Context, batch []*driver.Incoming) error {
	var errs []error
	for _, in := range batch {
		errs = append(errs, s.answer(in, func(p *pending) {
			if !s.b.happens(s.b.faults.DropAck) {
				delete(s.group.pending, p.seq)
			}
		}))
	}
	return errors.Join(errs...)
}

// NakWithDelay implements [driver.Nakker].
func (s *session) NakWithDelay(_ context.Context, in *driver.Incoming, delay time.Duration) error {
	return s.answer(in, func(p *pending) {
		p.due, p.owner = time.Now().Add(delay), nil
		s.b.signal()
	})
}

// ExtendAck implements [driver.AckExtender].
func (s *session) ExtendAck(_ context.Context, batch []*driver.Incoming) error {
	var errs []error
	for _, in := range batch {
		errs = append(errs, s.answer(in, func(p *pending) {
			if p.owner == s && p.count == in.Attempt {
				p.due = time.Now().Add(s.b.cfg.AckWait)
			}
		}))
	}
	return errors.Join(errs...)
}

// ExtendInterval implements [driver.AckExtender].
func (s *session) ExtendInterval() time.Duration { return s.b.cfg.AckWait / 3 }

// DeadLetter implements [driver.Session].
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	m := driver.DeadLetter(s.b.codec, s.cfg.Name, in, reason)
	m.Topic = s.cfg.DeadLetter
	return s.b.Publish(ctx, m)
}

// Close implements [driver.Session]: unacknowledged messages are redelivered at
// once.
func (s *session) Close(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, p := range s.group.pending {
		if p.owner == s {
			p.due, p.owner = time.Now(), nil
		}
	}
	s.b.signal()
	return nil
}
