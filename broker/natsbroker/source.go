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
)

// SourceConfig says what a source consumes. A field that is zero has its default.
type SourceConfig struct {
	// Name is the durable consumer's. Required.
	Name string
	// Subjects are consumed, from the beginning of the stream. Defaults to all of the stream.
	Subjects []string
	// AckWait is how long the server waits for a word about a message before it delivers it again. What is in hand is mentioned every third of it.
	// Defaults to 15 s; at least 1 s.
	AckWait time.Duration
	// DeadLetter is the subject for dead letters; a stream must listen to it. Defaults to "dead.<stream>.<name>".
	DeadLetter string
	// Receive tunes how messages are handed to the consumer. Its MaxHold defaults to always: a message that the server keeps for longer than AckWait
	// would be overtaken by later ones of its aggregate when another process takes over.
	Receive broker.ReceiverConfig
}

// Source consumes a stream.
type Source struct {
	b        *Broker
	cfg      SourceConfig
	fetchFor time.Duration // fetchWait, but in a test
}

// Source returns a source. Its durable consumer is made, or changed to this config, when it runs.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if err := checkName(cfg.Name); err != nil {
		errs = append(errs, fmt.Errorf("field Name: %w", err))
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = 15 * time.Second
	}
	if cfg.AckWait < time.Second {
		errs = append(errs, fmt.Errorf("field AckWait: %v, at least 1 s", cfg.AckWait))
	}
	if cfg.DeadLetter == "" {
		cfg.DeadLetter = b.deadSubject(cfg.Name)
	}
	if err := Names().Check(cfg.DeadLetter); err != nil {
		errs = append(errs, fmt.Errorf("field DeadLetter: %w", err))
	}
	if cfg.Receive.MaxHold == 0 {
		cfg.Receive.MaxHold = math.MaxInt64
	}
	errs = append(errs, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("natsbroker: source %s: %w", cfg.Name, err)
	}
	if cfg.Receive.Logger == nil {
		cfg.Receive.Logger = b.log
	}
	return &Source{b: b, cfg: cfg, fetchFor: fetchWait}, nil
}

// Name returns the durable consumer's name.
func (s *Source) Name() string { return s.cfg.Name }

// Run implements [broker.Source].
func (s *Source) Run(ctx context.Context, c broker.Consumer) error {
	return broker.Receive(ctx, s.cfg.Name, s.b.codec, c, s.cfg.Receive, s.open)
}

// open makes or finds the durable consumer.
func (s *Source) open(ctx context.Context) (broker.Session, error) {
	ctx, cancel := s.b.connected(ctx)
	defer cancel()
	reconnects := s.b.conn.Stats().Reconnects
	if s.b.conn.Status() != nats.CONNECTED {
		return nil, waybill.Unavailable(errLost)
	}
	consumer, err := s.b.js.CreateOrUpdateConsumer(ctx, s.b.cfg.Stream, jetstream.ConsumerConfig{
		Durable: s.cfg.Name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.cfg.AckWait, FilterSubjects: s.cfg.Subjects,
		MaxDeliver: -1, MaxAckPending: maxAckPending,
	})
	if err != nil {
		return nil, Failures().Classify(fmt.Errorf("natsbroker: the durable consumer %s: %w", s.cfg.Name, err))
	}
	info, err := quiet(ctx, consumer)
	if err != nil {
		return nil, Failures().Classify(fmt.Errorf("natsbroker: the durable consumer %s: %w", s.cfg.Name, err))
	}
	return &session{s: s, consumer: consumer, reconnects: reconnects, before: info.Delivered.Stream, missing: info.NumAckPending}, nil
}

const (
	// maxAckPending is how many messages the server lets be unanswered. Those that were put off count, and must not keep others from coming.
	maxAckPending = 20_000
	// fetchWait is how long the server may wait for messages before it answers, and so about how long a source takes to stop.
	fetchWait = 500 * time.Millisecond
)

// session is one connection of a source: it ends when the client has had to connect again, because messages may have been lost on the way, and only
// a session that begins waits for them.
type session struct {
	s          *Source
	consumer   jetstream.Consumer
	reconnects uint64

	// What was delivered before the session began, up to sequence number before, and not acknowledged: that many messages are missing, and have
	// to come before anything newer.
	before  uint64
	missing int
}

// handle is a message's way back to the server.
type handle struct {
	msg  jetstream.Msg
	word atomic.Int64 // when the server last heard of it, in Unix milliseconds
}

var errLost = errors.New("natsbroker: the connection was lost")

// lost reports whether the connection is not the one that the session began with.
func (s *session) lost() bool {
	return s.s.b.conn.Status() != nats.CONNECTED || s.s.b.conn.Stats().Reconnects != s.reconnects
}

// Take implements [broker.Session].
func (s *session) Take(ctx context.Context, r *broker.Receiver) error {
	if err := s.recover(ctx, r); err != nil {
		return err
	}
	for ctx.Err() == nil {
		free := r.WaitFree(ctx, 1)
		if ctx.Err() != nil {
			return nil
		}
		var back []*broker.Incoming
		err := s.fetch(free, func(in *broker.Incoming) {
			if ctx.Err() != nil || r.Put(ctx, in) != nil {
				back = append(back, in)
			}
		})
		// Not before the fetch is over: what is given back while it is open comes again at once, into the same fetch, and every time is counted.
		for _, in := range back {
			s.release(in)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fetch asks for up to n messages and calls fn for each. It reads on to the end, whatever fn does: a message that nobody takes from the channel would come
// again only when AckWait is over.
func (s *session) fetch(n int, fn func(*broker.Incoming)) error {
	if s.lost() {
		return errLost
	}
	batch, err := s.consumer.Fetch(n, jetstream.FetchMaxWait(s.s.fetchFor))
	if err != nil {
		return err
	}
	for msg := range batch.Messages() {
		in, err := incoming(msg)
		if err != nil {
			return err
		}
		if s.lost() { // it came over another connection, and earlier ones may not have arrived
			s.release(in)
			continue
		}
		fn(in)
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	return nil
}

func incoming(msg jetstream.Msg) (*broker.Incoming, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("natsbroker: a message without metadata: %w", err)
	}
	h := &handle{msg: msg}
	h.word.Store(time.Now().UnixMilli())
	return &broker.Incoming{
		Message: fromNATS(msg.Subject(), msg.Headers(), msg.Data()), Order: meta.Sequence.Stream, Attempt: int(meta.NumDelivered), Handle: h, //nolint:gosec // a count
	}, nil
}

// release gives a message back that was never handed out.
func (s *session) release(in *broker.Incoming) {
	if err := in.Handle.(*handle).msg.Nak(); err != nil {
		s.s.b.log.Warn("a message could not be given back and comes again after AckWait", "source", s.s.cfg.Name, "error", err)
	}
}

// Ack implements [broker.Session]. Each message's ack is confirmed by the server; they are under way together.
func (s *session) Ack(ctx context.Context, batch []*broker.Incoming) error {
	errs := make([]error, len(batch))
	var wg sync.WaitGroup
	for i, in := range batch {
		wg.Go(func() { errs[i] = in.Handle.(*handle).msg.DoubleAck(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// PutOff implements [broker.Nakker].
func (s *session) NakWithDelay(_ context.Context, in *broker.Incoming, delay time.Duration) error {
	if delay <= 0 {
		return in.Handle.(*handle).msg.Nak()
	}
	return in.Handle.(*handle).msg.NakWithDelay(delay)
}

// Keep implements [broker.AckExtender].
func (s *session) ExtendAck(_ context.Context, batch []*broker.Incoming) error {
	now := time.Now()
	for _, in := range batch {
		h := in.Handle.(*handle)
		if now.Sub(time.UnixMilli(h.word.Load())) < s.ExtendInterval()/2 {
			continue
		}
		if err := h.msg.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return err
		}
		h.word.Store(now.UnixMilli())
	}
	return nil
}

// ExtendInterval implements [broker.AckExtender].
func (s *session) ExtendInterval() time.Duration { return s.s.cfg.AckWait / 3 }

// DeadLettered implements [broker.Session].
func (s *session) DeadLetter(ctx context.Context, in *broker.Incoming, reason error) error {
	m := s.s.b.codec.DeadLetter(s.s.cfg.Name, in, reason)
	m.Topic = s.s.cfg.DeadLetter
	_, err := s.s.b.js.PublishMsg(ctx, toNATS(&m), jetstream.WithRetryAttempts(0))
	if err != nil {
		return Failures().Classify(fmt.Errorf("natsbroker: dead letter to %s: %w", m.Topic, err))
	}
	return nil
}

// Close implements [broker.Session]. The connection is the broker's, and stays.
func (*session) Close(context.Context) error { return nil }
