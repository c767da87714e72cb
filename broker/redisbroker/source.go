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
	"github.com/waybillhq/waybill/broker/driver"
)

// SourceConfig configures a [Source]. Zero fields have their defaults.
type SourceConfig struct {
	// Group is the consumer group. It is created at the beginning of the
	// streams if it does not exist. Required.
	Group string
	// Name identifies the source in logs, metrics and dead letters. Defaults to
	// Group.
	Name string
	// Streams are the streams to read; the source creates missing ones. At
	// least one is required, and at most 64 are allowed.
	Streams []string
	// Consumer is the name of this consumer in the group. With a name that is
	// unique per process and the same after a restart, the consumer resumes its
	// unanswered messages, in order. Defaults to a random name; after a crash,
	// the messages in flight of such a consumer are taken over after ClaimIdle.
	Consumer string
	// ClaimIdle is how long a message may stay unanswered before another
	// consumer takes it over. A live consumer keeps its messages. Defaults to
	// 30 s.
	ClaimIdle time.Duration
	// DeadLetter is the stream for messages that can never be handled. Defaults
	// to the stream's name and ":dead".
	DeadLetter string
	// DeleteAcked deletes entries once they are acknowledged. Use it only for
	// streams with a single group: other groups would miss the entries.
	// Defaults to false.
	DeleteAcked bool
	// Receive configures how messages are passed to the consumer. Defaults to
	// the defaults of [broker.ReceiverConfig].
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
		errs = append(errs, errors.New("SourceConfig.Group: empty"))
	}
	if len(cfg.Streams) == 0 {
		errs = append(errs, errors.New("SourceConfig.Streams: empty"))
	}
	if len(cfg.Streams) > streamsMax {
		errs = append(errs, fmt.Errorf("SourceConfig.Streams: %d, at most %d", len(cfg.Streams), streamsMax))
	}
	for _, name := range cfg.Streams {
		if err := names.Check(name); err != nil {
			errs = append(errs, fmt.Errorf("SourceConfig.Streams: %w", err))
		}
	}
	if cfg.ClaimIdle < 0 {
		errs = append(errs, fmt.Errorf("SourceConfig.ClaimIdle: %v is negative", cfg.ClaimIdle))
	}
	if slices.Contains(cfg.Streams, cfg.DeadLetter) {
		errs = append(errs, fmt.Errorf("SourceConfig.DeadLetter: %s is one of Streams", cfg.DeadLetter))
	}
	codec, err := broker.NewCodec(broker.Redis, broker.CodecConfig{})
	errs = append(errs, err, cfg.Receive.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("redisbroker: %w", err)
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Group
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
func (s *Source) Name() string { return s.cfg.Name }

// Run implements broker.Source.
func (s *Source) Run(ctx context.Context, c waybill.Sink) error {
	return driver.Receive(ctx, s.cfg.Name, s.codec, c, s.cfg.Receive, s.open)
}

func (s *Source) open(ctx context.Context) (driver.Session, error) {
	if err := s.sameSlot(ctx); err != nil {
		return nil, err
	}
	for _, stream := range s.cfg.Streams {
		err := s.b.client.XGroupCreateMkStream(ctx, stream, s.cfg.Group, "0").Err()
		switch {
		case err == nil, replies(err, "BUSYGROUP"):
		case replies(err, "WRONGTYPE"):
			return nil, waybill.Permanent(s.b.hide(fmt.Errorf("redisbroker: %s is not a stream: %w", stream, err)))
		default:
			return nil, s.b.hide(fmt.Errorf("redisbroker: group %s of stream %s: %w", s.cfg.Group, stream, err))
		}
	}
	return &session{Source: s}, nil
}

// session is one connection of the source.
type session struct{ *Source }

// handle identifies an entry for its answer.
type handle struct{ stream, id string }

const (
	// blockFor is how long a read waits for entries. It also bounds the time
	// that a source takes to stop.
	blockFor = 500 * time.Millisecond
	// readMax is the maximum number of entries per read.
	readMax = 256
)

// Take implements driver.Session. Unanswered entries of this consumer come
// first, so that later ones do not overtake them.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
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

// read reads new entries.
func (s *session) read(ctx context.Context, r *driver.Receiver) error {
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
		Count: int64(max(min(free, readMax)/len(s.cfg.Streams), 1)), Block: blockFor,
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

// takeOver takes entries that one consumer, or any, has left unanswered for at
// least idle.
func (s *session) takeOver(ctx context.Context, r *driver.Receiver, stream, consumer string, idle time.Duration) error {
	for start := "-"; ; {
		n := min(r.WaitFree(ctx, 1), readMax)
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
		// Another consumer may have taken some of them in the meantime. Those
		// are no longer idle and are not returned.
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

// incoming converts an entry for the receiver.
func (s *session) incoming(stream string, entry redis.XMessage, attempt int) *driver.Incoming {
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
	in := &driver.Incoming{Message: m, Attempt: attempt, Handle: handle{stream, entry.ID}}
	in.Order, in.Within = order(entry.ID, slices.Index(s.cfg.Streams, stream))
	return in
}

// order returns the position of an entry. Its id is milliseconds and a count
// within them. If the server's clock is set back, the server keeps counting
// within the last millisecond, so the count may be any 64-bit number. The index
// of the stream distinguishes equal ids of different streams.
func order(id string, stream int) (uint64, [2]uint64) {
	ms, n, _ := strings.Cut(id, "-")
	high, _ := strconv.ParseUint(ms, 10, 64)
	low, _ := strconv.ParseUint(n, 10, 64)
	// An Order of zero would mean no position.
	return min(high, math.MaxUint64-1) + 1, [2]uint64{low, uint64(max(stream, 0))}
}

// streamsMax is the maximum number of streams per source: a read is divided
// among them.
const streamsMax = 64

// byStream groups the ids of entries by stream.
func byStream(batch []*driver.Incoming) map[string][]string {
	ids := make(map[string][]string, 1)
	for _, in := range batch {
		if h, ok := in.Handle.(handle); ok {
			ids[h.stream] = append(ids[h.stream], h.id)
		}
	}
	return ids
}

// Ack implements driver.Session.
func (s *session) Ack(ctx context.Context, batch []*driver.Incoming) error {
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

// ExtendAck implements driver.AckExtender: it resets the idle time of the
// entries.
func (s *session) ExtendAck(ctx context.Context, batch []*driver.Incoming) error {
	pipe := s.b.client.Pipeline()
	for stream, ids := range byStream(batch) {
		pipe.XClaimJustID(ctx, &redis.XClaimArgs{Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, Messages: ids})
	}
	_, err := pipe.Exec(ctx)
	return s.b.hide(err)
}

// ExtendInterval implements driver.AckExtender.
func (s *session) ExtendInterval() time.Duration { return s.cfg.ClaimIdle / 3 }

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	stream := s.cfg.DeadLetter
	if stream == "" {
		stream = in.Topic + ":dead"
	}
	dead := driver.DeadLetter(s.codec, s.cfg.Name, in, reason)
	return s.b.hide(s.b.client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: fields(&dead)}).Err())
}

// Close implements driver.Session. Redis cannot take an entry back, but an
// entry with a long idle time is taken over at once. A consumer with a random
// name is removed when it has no pending entries.
func (s *session) Close(ctx context.Context) error {
	var errs []error
	for _, stream := range s.cfg.Streams {
		errs = append(errs, s.giveBack(ctx, stream))
	}
	return s.b.hide(errors.Join(errs...))
}

// returned is the consumer that holds entries that were returned.
const returned = "waybill-returned"

func (s *session) giveBack(ctx context.Context, stream string) error {
	if !strings.HasPrefix(s.cfg.Consumer, "waybill-") {
		return nil // the next consumer of this name resumes them
	}
	for {
		left, err := s.b.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: stream, Group: s.cfg.Group, Consumer: s.cfg.Consumer, Start: "-", End: "+", Count: 1000,
		}).Result()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			// No other process adds entries under this name, so the removed
			// consumer has none pending: removing a consumer forgets its
			// pending entries.
			return s.b.client.XGroupDelConsumer(ctx, stream, s.cfg.Group, s.cfg.Consumer).Err()
		}
		pipe := s.b.client.Pipeline()
		for _, p := range left {
			// JUSTID does not change the delivery count.
			pipe.Do(ctx, "XCLAIM", stream, s.cfg.Group, returned, 0, p.ID, "IDLE", (24 * time.Hour).Milliseconds(), "JUSTID")
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
}
