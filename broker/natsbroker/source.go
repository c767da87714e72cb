package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Durable is the name of the durable consumer. Required.
	Durable string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Durable.
	Name string
	// Subjects are the subjects to consume, from the beginning of the stream.
	// Defaults to all subjects of the stream.
	Subjects []string
	// AckWait is how long the server waits for an answer before it redelivers a
	// message. The source extends the deadline of messages in flight every
	// third of AckWait. Defaults to 15 s; at least 1 s.
	AckWait time.Duration
	// DeadLetter is the subject for dead letters; a stream must have it.
	// Defaults to "dead.<stream>.<durable>".
	DeadLetter string
	// Receive configures how messages are passed to the consumer. Defaults to
	// the defaults of [broker.ReceiverConfig], except that MaxHold is
	// unlimited: if the server held a deferred message for longer than AckWait,
	// later messages of its aggregate would overtake it when another process
	// takes over.
	Receive broker.ReceiverConfig
}

// Source consumes a stream.
type Source struct {
	b        *Broker
	cfg      SourceConfig
	fetchFor time.Duration // fetchWait, except in tests
}

// Source returns a source. Run creates the durable consumer, or updates it to
// this config.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	unnamed := checkName(cfg.Durable)
	if unnamed != nil {
		errs = append(errs, fmt.Errorf("SourceConfig.Durable: %w", unnamed))
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Durable
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = 15 * time.Second
	}
	if cfg.AckWait < time.Second {
		errs = append(errs, fmt.Errorf("SourceConfig.AckWait: %v is less than 1s", cfg.AckWait))
	}
	byName := cfg.DeadLetter == ""
	if byName {
		cfg.DeadLetter = b.deadSubject(cfg.Durable)
	}
	if err := Names().Check(cfg.DeadLetter); err != nil && (unnamed == nil || !byName) {
		errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %w", err))
	}
	if cfg.Receive.MaxHold == 0 {
		cfg.Receive.MaxHold = math.MaxInt64
	}
	errs = append(errs, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("natsbroker: %w", err)
	}
	if cfg.Receive.Logger == nil {
		cfg.Receive.Logger = b.log
	}
	return &Source{b: b, cfg: cfg, fetchFor: fetchWait}, nil
}

// Name implements [broker.Source].
func (s *Source) Name() string { return s.cfg.Name }

// Run implements [broker.Source].
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.b.codec, c, s.cfg.Receive, s.open)
}

// open creates or finds the durable consumer.
func (s *Source) open(ctx context.Context) (driver.Session, error) {
	ctx, cancel := s.b.connected(ctx)
	defer cancel()
	reconnects := s.b.conn.Stats().Reconnects
	if s.b.conn.Status() != nats.CONNECTED {
		return nil, waybill.Unavailable(errLost)
	}
	consumer, err := s.b.js.CreateOrUpdateConsumer(ctx, s.b.cfg.Stream, jetstream.ConsumerConfig{
		Durable: s.cfg.Durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.cfg.AckWait, FilterSubjects: s.cfg.Subjects,
		MaxDeliver: -1, MaxAckPending: maxAckPending,
	})
	if err != nil {
		return nil, Failures().Classify(fmt.Errorf("natsbroker: durable consumer %s: %w", s.cfg.Durable, err))
	}
	info, err := quiet(ctx, consumer)
	if err != nil {
		return nil, Failures().Classify(fmt.Errorf("natsbroker: durable consumer %s: %w", s.cfg.Durable, err))
	}
	return &session{s: s, consumer: consumer, reconnects: reconnects, before: info.Delivered.Stream, missing: info.NumAckPending}, nil
}

const (
	// maxAckPending is the maximum number of unacknowledged messages on the
	// server. It includes deferred messages, which must not block others.
	maxAckPending = 20_000
	// fetchWait is how long the server may wait for messages before it answers
	// a fetch. It is also about the time that a source takes to stop.
	fetchWait = 500 * time.Millisecond
)

// session is one connection of a source. The session ends when the client
// reconnects, because messages may have been lost with the old connection, and
// only a new session waits for them.
type session struct {
	s          *Source
	consumer   jetstream.Consumer
	reconnects uint64

	// missing is the number of messages up to sequence number before that were
	// delivered before the session began and not acknowledged. They must arrive
	// before newer messages are handed out.
	before  uint64
	missing int
}

// handle answers a message.
type handle struct {
	msg      jetstream.Msg
	extended atomic.Int64 // last time the deadline was extended, in Unix milliseconds
}

var errLost = errors.New("natsbroker: connection lost")

// lost reports whether the session's original connection is gone.
func (s *session) lost() bool {
	return s.s.b.conn.Status() != nats.CONNECTED || s.s.b.conn.Stats().Reconnects != s.reconnects
}

// Take implements [driver.Session].
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
	if err := s.recover(ctx, r); err != nil {
		return err
	}
	for ctx.Err() == nil {
		free := r.WaitFree(ctx, 1)
		if ctx.Err() != nil {
			return nil
		}
		var back []*driver.Incoming
		err := s.fetch(free, func(in *driver.Incoming) {
			if ctx.Err() != nil || r.Put(ctx, in) != nil {
				back = append(back, in)
			}
		})
		// After the end of the fetch: a message that is returned during the
		// fetch is redelivered into the same fetch at once, and each time
		// counts.
		for _, in := range back {
			s.release(in)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch requests up to n messages and calls fn for each. fetch always drains
// the channel: a message that is left in it would be redelivered only after
// AckWait.
func (s *session) fetch(n int, fn func(*driver.Incoming)) error {
	if s.lost() {
		return errLost
	}
	batch, err := s.consumer.Fetch(n, jetstream.FetchMaxWait(s.s.fetchFor))
	if err != nil {
		return err
	}
	last := time.Now()
	for msg := range batch.Messages() {
		last = time.Now()
		in, err := incoming(msg)
		if err != nil {
			return err
		}
		// The message came over a new connection, and earlier ones may be lost.
		if s.lost() {
			s.release(in)
			continue
		}
		fn(in)
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	if time.Since(last) > s.s.fetchFor+answerWait {
		return errUnanswered
	}
	return nil
}

// answerWait is how much longer than the server the client waits for the end of
// a fetch, at least. The client then drops messages that arrive later, and
// reports nothing: a process that was paused, or a network that was slow, loses
// the messages that were under way. Only a new session waits for them.
const answerWait = 500 * time.Millisecond

var errUnanswered = errors.New("natsbroker: the server did not end a fetch in time")

func incoming(msg jetstream.Msg) (*driver.Incoming, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("natsbroker: message without metadata: %w", err)
	}
	h := &handle{msg: msg}
	h.extended.Store(time.Now().UnixMilli())
	return &driver.Incoming{
		Message: fromNATS(msg.Subject(), msg.Headers(), msg.Data()), Order: meta.Sequence.Stream, Attempt: int(meta.NumDelivered), Handle: h, //nolint:gosec // a count
	}, nil
}

// release returns a message that was never handed out.
func (s *session) release(in *driver.Incoming) {
	if err := in.Handle.(*handle).msg.Nak(); err != nil {
		s.s.b.log.Warn("returning a message to the server failed; it will be redelivered after AckWait", "source", s.s.cfg.Name, "error", err)
	}
}

// Ack implements [driver.Session]. The server confirms each acknowledgment;
// all of them are in flight together.
func (s *session) Ack(ctx context.Context, batch []*driver.Incoming) error {
	errs := make([]error, len(batch))
	var wg sync.WaitGroup
	for i, in := range batch {
		wg.Go(func() { errs[i] = in.Handle.(*handle).msg.DoubleAck(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// NakWithDelay implements [driver.Nakker].
func (s *session) NakWithDelay(_ context.Context, in *driver.Incoming, delay time.Duration) error {
	if delay <= 0 {
		return in.Handle.(*handle).msg.Nak()
	}
	return in.Handle.(*handle).msg.NakWithDelay(delay)
}

// ExtendAck implements [driver.AckExtender].
func (s *session) ExtendAck(_ context.Context, batch []*driver.Incoming) error {
	now := time.Now()
	for _, in := range batch {
		h := in.Handle.(*handle)
		if now.Sub(time.UnixMilli(h.extended.Load())) < s.ExtendInterval()/2 {
			continue
		}
		if err := h.msg.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return err
		}
		h.extended.Store(now.UnixMilli())
	}
	return nil
}

// ExtendInterval implements [driver.AckExtender].
func (s *session) ExtendInterval() time.Duration { return s.s.cfg.AckWait / 3 }

// DeadLetter implements [driver.Session].
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	m := driver.DeadLetter(s.s.b.codec, s.s.cfg.Name, in, reason)
	m.Topic = s.s.cfg.DeadLetter
	_, err := s.s.b.js.PublishMsg(ctx, toNATS(&m), jetstream.WithRetryAttempts(0))
	if err != nil {
		return Failures().Classify(fmt.Errorf("natsbroker: dead letter to %s: %w", m.Topic, err))
	}
	return nil
}

// Close implements [driver.Session]. The connection belongs to the broker and
// stays open.
func (*session) Close(context.Context) error { return nil }
