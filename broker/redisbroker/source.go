package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// SourceConfig holds what a source is, and what may be tuned. A field that is zero has its default.
type SourceConfig struct {
	// Group is the consumer group. It is made if it is not there, from the beginning of the streams. Required.
	Group string
	// Streams are read; those that are not there are made. At least one, at most 64.
	Streams []string
	// Consumer is the name of this consumer in the group. A name of its own for every process, the same after a restart, lets it go on where it was
	// cut off, in order. Defaults to a random one; what such a consumer had in hand when it was killed is taken over after ClaimIdle.
	Consumer string
	// ClaimIdle is after how long a message that was handed out and not answered is taken over from its consumer. A live consumer
	// keeps its messages. Defaults to 30 s.
	ClaimIdle time.Duration
	// DeadLetter is the stream for what can never be handled. Defaults to the stream's name and ":dead".
	DeadLetter string
	// DeleteAcked deletes entries once they are acknowledged. Only for streams with this one group: others would miss them.
	DeleteAcked bool
	// Receive tunes the source as any other's.
	Receive broker.ReceiverConfig
}

// Source reads streams as a consumer of a group.
type Source struct {
	b     *Broker
	cfg   SourceConfig
	codec *broker.Codec
}

// Source returns a source.
func (b *Broker) Source(cfg SourceConfig) (*Source, error) {
	var errs []error
	if cfg.Group == "" {
		errs = append(errs, errors.New("field Group: empty"))
	}
	if len(cfg.Streams) == 0 {
		errs = append(errs, errors.New("field Streams: none"))
	}
	if len(cfg.Streams) > streamsMost {
		errs = append(errs, fmt.Errorf("field Streams: %d, at most %d", len(cfg.Streams), streamsMost))
	}
	for _, name := range cfg.Streams {
		if err := names.Check(name); err != nil {
			errs = append(errs, fmt.Errorf("field Streams: %w", err))
		}
	}
	if cfg.ClaimIdle < 0 {
		errs = append(errs, errors.New("field ClaimIdle: not negative"))
	}
	if slices.Contains(cfg.Streams, cfg.DeadLetter) {
		errs = append(errs, errors.New("field DeadLetter: it is one of the streams that are read"))
	}
	codec, err := broker.NewCodec(broker.Redis, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("redisbroker: %w", err)
	}
	if cfg.Consumer == "" {
		cfg.Consumer = "waybill-" + waybill.NewID().String()
	}
	if cfg.ClaimIdle == 0 {
		cfg.ClaimIdle = 30 * time.Second
	}
	cfg.Streams = slices.Clone(cfg.Streams)
	return &Source{b: b, cfg: cfg, codec: codec}, nil
}

// Name implements broker.Source.
func (s *Source) Name() string { return s.cfg.Group }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c broker.Consumer) error {
	return broker.Receive(ctx, s.cfg.Group, s.codec, c, s.cfg.Receive, s.open)
}

func (s *Source) open(ctx context.Context) (broker.Session, error) {
	for _, stream := range s.cfg.Streams {
		err := s.b.client.XGroupCreateMkStream(ctx, stream, s.cfg.Group, "0").Err()
		switch {
		case err == nil, replies(err, "BUSYGROUP"):
		case replies(err, "WRONGTYPE"):
			return nil, waybill.Permanent(s.b.hide(fmt.Errorf("redisbroker: %s is no stream: %w", stream, err)))
		default:
			return nil, s.b.hide(fmt.Errorf("redisbroker: group %s of stream %s: %w", s.cfg.Group, stream, err))
		}
	}
	return &session{Source: s}, nil
}

// session is one connection of the source.
type session struct{ *Source }

// handle is what answers for an entry.
type handle struct{ stream, id string }

const (
	// blockFor is how long a read waits for entries; it also bounds how long a source takes to stop.
	blockFor = 500 * time.Millisecond
	// readMost is how many entries one read brings at most.
	readMost = 256
)

// Take implements broker.Session. What this consumer had in hand before comes first, so that it is not overtaken by what came later.
func (s *session) Take(ctx context.Context, r *broker.Receiver) error {
	for _, stream := range s.cfg.Streams {
		if err := s.takeOver(ctx, r, stream, s.cfg.Consumer, 0); err != nil {
			return s.ended(ctx, err)
		}
	}
	lookAgain := time.Now()
	for ctx.Err() == nil {
		if !time.Now().Before(lookAgain) {
			for _, stream := range s.cfg.Streams {
				if err := s.takeOver(ctx, r, stream, "", s.cfg.ClaimIdle); err != nil {
					return s.ended(ctx, err)
				}
			}
			lookAgain = time.Now().Add(s.cfg.ClaimIdle / 4)
		}
		if err := s.read(ctx, r); err != nil {
			return s.ended(ctx, err)
		}
	}
	return nil
}

func (s *session) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return s.b.hide(err)
}

// read takes new entries.
func (s *session) read(ctx context.Context, r *broker.Receiver) error {
	free := r.WaitFree(ctx, len(s.cfg.Streams))
	if free == 0 {
		return nil
	}
	streams := slices.Clone(s.cfg.Streams)
	for range s.cfg.Streams {
		streams = append(streams, ">")
	}
	found, err := s.b.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: s.cfg.Group, Consumer: s.cfg.Consumer, Streams: streams,
		Count: int64(max(min(free, readMost)/len(s.cfg.Streams), 1)), Block: blockFor,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("redisbroker: read: %w", err)
	}
	for _, stream := range found {
		for _, entry := range stream.Messages {
			if err := r.Put(ctx, s.incoming(stream.Stream, entry, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeOver takes entries that a consumer, or any, was handed and has not answered for as long as idle.
func (s *session) takeOver(ctx context.Context, r *broker.Receiver, stream, consumer string, idle time.Duration) error {
	for start := "-"; ; {
		n := min(r.WaitFree(ctx, 1), readMost)
		if n == 0 {
			return ctx.Err()
		}
		waiting, err := s.b.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: stream, Group: s.cfg.Group, Consumer: consumer, Idle: idle, Start: start, End: "+", Count: int64(n),
		}).Result()
		if err != nil {
			return fmt.Errorf("redisbroker: pending entries: %w", err)
		}
		if len(waiting) == 0 {
			return nil
		}
		ids, counts := make([]string, 0, len(waiting)), make(map[string]int, len(waiting))
		for _, p := range waiting {
			ids, counts[p.ID] = append(ids, p.ID), int(p.RetryCount)
		}
		// Somebody else may have taken some of them meanwhile: those are not idle any more, and do not come.
		taken, err := s.b.client.XClaim(ctx, &redis.XClaimArgs{
			Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, MinIdle: idle, Messages: ids,
		}).Result()
		if err != nil {
			return fmt.Errorf("redisbroker: take over: %w", err)
		}
		for _, entry := range taken {
			if err := r.Put(ctx, s.incoming(stream, entry, counts[entry.ID]+1)); err != nil {
				return err
			}
		}
		start = "(" + ids[len(ids)-1]
	}
}

// incoming returns an entry as the receiver takes it.
func (s *session) incoming(stream string, entry redis.XMessage, attempt int) *broker.Incoming {
	m := broker.Message{Topic: stream}
	for name, value := range entry.Values {
		text, ok := value.(string)
		if !ok {
			continue
		}
		switch name {
		case fieldData:
			m.Payload = []byte(text)
		case fieldPublishID:
			m.PublishID = text
		case "content-type":
			m.ContentType = text
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: text})
		default:
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: text})
		}
	}
	in := &broker.Incoming{Message: m, Attempt: attempt, Handle: handle{stream, entry.ID}}
	in.Order, in.Within = order(entry.ID, slices.Index(s.cfg.Streams, stream))
	return in
}

// order returns the place of an entry, whose id is milliseconds and a count within them. When the
// server's clock is set back, it goes on counting within the last millisecond, for as long as that
// takes: the count may be any number of 64 bits. The streams, whose ids may be equal, are told
// apart.
func order(id string, stream int) (uint64, [2]uint64) {
	ms, n, _ := strings.Cut(id, "-")
	high, _ := strconv.ParseUint(ms, 10, 64)
	low, _ := strconv.ParseUint(n, 10, 64)
	return min(high, math.MaxUint64-1) + 1, [2]uint64{low, uint64(max(stream, 0))} // zero would be no place at all
}

// streamsMost is how many streams one source reads: each has a part of what one read brings.
const streamsMost = 64

// byStream collects the ids of entries.
func byStream(batch []*broker.Incoming) map[string][]string {
	ids := make(map[string][]string, 1)
	for _, in := range batch {
		if h, ok := in.Handle.(handle); ok {
			ids[h.stream] = append(ids[h.stream], h.id)
		}
	}
	return ids
}

// Ack implements broker.Session.
func (s *session) Ack(ctx context.Context, batch []*broker.Incoming) error {
	pipe := s.b.client.Pipeline()
	for stream, ids := range byStream(batch) {
		pipe.XAck(ctx, stream, s.cfg.Group, ids...)
		if s.cfg.DeleteAcked {
			pipe.XDel(ctx, stream, ids...)
		}
	}
	_, err := pipe.Exec(ctx)
	return s.b.hide(err)
}

// Keep implements broker.AckExtender: the entries are this consumer's, and were looked at just now.
func (s *session) ExtendAck(ctx context.Context, batch []*broker.Incoming) error {
	pipe := s.b.client.Pipeline()
	for stream, ids := range byStream(batch) {
		pipe.XClaimJustID(ctx, &redis.XClaimArgs{Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, Messages: ids})
	}
	_, err := pipe.Exec(ctx)
	return s.b.hide(err)
}

// ExtendInterval implements broker.AckExtender.
func (s *session) ExtendInterval() time.Duration { return s.cfg.ClaimIdle / 3 }

// DeadLettered implements broker.Session.
func (s *session) DeadLetter(ctx context.Context, in *broker.Incoming, reason error) error {
	stream := s.cfg.DeadLetter
	if stream == "" {
		stream = in.Topic + ":dead"
	}
	dead := s.codec.DeadLetter(s.cfg.Group, in, reason)
	return s.b.hide(s.b.client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: fields(&dead)}).Err())
}

// Close implements broker.Session. Redis has no way to give an entry back; but one that looks as if nobody had touched it for long is taken over at
// once. A random name is removed when nothing is left under it.
func (s *session) Close(ctx context.Context) error {
	var errs []error
	for _, stream := range s.cfg.Streams {
		errs = append(errs, s.giveBack(ctx, stream))
	}
	return s.b.hide(errors.Join(errs...))
}

// returned is the consumer under whose name entries lie that were given back.
const returned = "waybill-returned"

func (s *session) giveBack(ctx context.Context, stream string) error {
	if !strings.HasPrefix(s.cfg.Consumer, "waybill-") {
		return nil // the consumer of this name goes on with them when it comes back
	}
	for {
		left, err := s.b.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, Start: "-", End: "+", Count: 1000,
		}).Result()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			// Nobody else puts anything under this name, so what is removed has nothing pending: removing a consumer forgets what it has.
			return s.b.client.XGroupDelConsumer(ctx, stream, s.cfg.Group, s.cfg.Consumer).Err()
		}
		pipe := s.b.client.Pipeline()
		for _, p := range left {
			// JUSTID leaves the count as it is.
			pipe.Do(ctx, "XCLAIM", stream, s.cfg.Group, returned, 0, p.ID, "IDLE", (24 * time.Hour).Milliseconds(), "JUSTID")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
}
