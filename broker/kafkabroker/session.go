package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// session is one membership in the group.
type session struct {
	*Source
	client     *kgo.Client
	end        context.CancelFunc
	offsets    offsets
	committing sync.Mutex // one commit at a time: a late commit must not undo another

	mu       sync.Mutex
	receiver *driver.Receiver
}

// Take implements driver.Session. Take does not poll while the receiver is
// full; the client keeps the membership alive meanwhile.
func (s *session) Take(ctx context.Context, r *driver.Receiver) error {
	s.mu.Lock()
	s.receiver = r
	s.mu.Unlock()
	for {
		room := r.WaitFree(ctx, 1)
		if room == 0 {
			return nil
		}
		err := s.poll(ctx, r, room)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return s.b.hide(fmt.Errorf("kafkabroker: %w", err))
		}
	}
}

func (s *session) poll(ctx context.Context, r *driver.Receiver, limit int) error {
	fetches := s.client.PollRecords(ctx, limit)
	defer s.client.AllowRebalance()
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		for _, record := range p.Records {
			if failed != nil {
				return
			}
			// The record is registered first, so that nothing after it is
			// committed before it is done.
			h := s.offsets.take(record.Topic, record.Partition, record.Offset, p.HighWatermark)
			failed = r.Put(ctx, incoming(record, h))
		}
	})
	if failed != nil {
		return failed
	}
	for _, e := range fetches.Errors() {
		var loss *kgo.ErrDataLoss // the client has already moved to an offset that exists
		if !errors.As(e.Err, &loss) {
			return e.Err
		}
	}
	return nil
}

// incoming converts a record for the receiver.
func incoming(record *kgo.Record, h handle) *driver.Incoming {
	m := message(record)
	in := &driver.Incoming{Message: m, OrderBy: m.Key, Tenure: h.tenure(), Handle: h}
	in.Order, in.Within = h.order()
	return in
}

func message(record *kgo.Record) broker.Message {
	m := broker.Message{Topic: record.Topic, Key: string(record.Key), Payload: record.Value, Headers: make([]broker.Header, 0, len(record.Headers))}
	for _, h := range record.Headers {
		switch value := string(h.Value); h.Key {
		case broker.HeaderPublishID:
			m.PublishID = value
		case "content-type":
			m.ContentType = value
			fallthrough
		default:
			m.Headers = append(m.Headers, broker.Header{Name: h.Key, Value: value})
		}
	}
	return m
}

// Ack implements driver.Session. Messages that are done behind one that is not
// done are committed together with it.
func (s *session) Ack(ctx context.Context, batch []*driver.Incoming) error {
	for _, in := range batch {
		if h, ok := in.Handle.(handle); ok {
			s.offsets.done(h)
		}
	}
	return s.b.hide(s.commit(ctx))
}

// commit commits the progress of each partition. A concurrent call may already
// have done the work of this one.
func (s *session) commit(ctx context.Context) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	ready := s.offsets.ready()
	if len(ready) == 0 {
		return nil
	}
	var failed error
	s.client.CommitOffsetsSync(ctx, ready, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("kafkabroker: commit: %w", failed)
	}
	s.offsets.commit(ready)
	return nil
}

// revoked hands partitions over: waiting messages are dropped, messages in
// flight are finished and committed.
func (s *session) revoked(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
	s.release(ctx, gone)
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := s.commit(ctx); err != nil && s.cfg.Receive.Logger != nil {
		s.cfg.Receive.Logger.WarnContext(ctx, "committing the messages of revoked partitions failed; they will be redelivered",
			"source", s.cfg.Name, "error", s.b.hide(err))
	}
	s.forget(gone)
}

// commitTimeout bounds a commit. It fits into the time that rebalance leaves
// after handOver.
const commitTimeout = 10 * time.Second

// lost drops partitions that other members already own, without a commit.
func (s *session) lost(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
	s.forget(gone)
	s.release(ctx, gone)
}

// release drops the messages of partitions and waits for those in flight, but
// not longer than the group does.
func (s *session) release(ctx context.Context, gone map[string][]int32) {
	s.mu.Lock()
	r := s.receiver
	s.mu.Unlock()
	if r == nil {
		return // no record was taken
	}
	ctx, cancel := context.WithTimeout(ctx, handOver)
	defer cancel()
	_ = r.Drop(ctx, func(in *driver.Incoming) bool {
		h, ok := in.Handle.(handle)
		return ok && slices.Contains(gone[h.partition.topic], h.partition.number)
	})
}

// forget waits for a running commit. A commit that arrived after another member
// took the partition would undo that member's progress.
func (s *session) forget(gone map[string][]int32) {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.offsets.forget(gone)
}

// DeadLetter implements driver.Session.
func (s *session) DeadLetter(ctx context.Context, in *driver.Incoming, reason error) error {
	letter := driver.DeadLetter(s.codec, s.cfg.Name, in, reason)
	letter.Topic = deadLetter(&s.cfg, in.Topic)
	return s.b.hide(s.b.publishAlone(ctx, records([]broker.Message{letter})[0]))
}

// Close implements driver.Session. Leaving the group hands its partitions over
// at once.
func (s *session) Close(ctx context.Context) error {
	err := s.client.LeaveGroupContext(ctx)
	s.end()
	s.client.CloseAllowingRebalance()
	return s.b.hide(err)
}
