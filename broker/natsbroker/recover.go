package natsbroker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker"
)

// quiet returns the consumer's state when nobody fetches any more. A process that is gone, or this one before its connection was lost, may have left a
// fetch behind that takes messages until it expires: they would be delivered later than what comes behind them, and nobody would know.
func quiet(ctx context.Context, c jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	for expired := time.Now().Add(2 * fetchWait); ; {
		info, err := c.Info(ctx)
		if err != nil || info.NumWaiting == 0 || time.Now().After(expired) { // by then it is another one's that runs: a group without an order
			return info, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(fetchWait / 10):
		}
	}
}

// recover takes what was delivered before the session began and never answered, before anything newer: the process that had it is gone, or it was lost with the
// connection. The server delivers such messages again in any order, when AckWait is over, and newer ones in between: none is handed out before all of them are here.
func (s *session) recover(ctx context.Context, r *broker.Receiver) error {
	held := &collection{before: s.before}
	defer func() {
		for _, in := range held.all { // those that were not put: ctx has ended, or the connection is lost
			s.release(in)
		}
	}()
	limit := s.s.cfg.AckWait + s.s.cfg.AckWait/2 + time.Second // for one more to come
	next := min(s.missing, recoverBatch)
	for since := time.Now(); held.found < s.missing && ctx.Err() == nil && time.Since(since) < limit; {
		had := held.found
		if err := s.fetch(next, held.add); err != nil {
			return err
		}
		if err := s.ExtendAck(ctx, held.all); err != nil {
			return err
		}
		if held.found > had {
			since, next = time.Now(), min(s.missing-held.found, recoverBatch)
			continue
		}
		gone, err := s.settled(ctx)
		if err != nil {
			return err
		}
		if gone {
			break
		}
		next = 1 // so that few newer messages pile up
		select {
		case <-ctx.Done():
		case <-time.After(recoverPause):
		}
	}
	if held.found < s.missing && ctx.Err() == nil {
		s.s.b.log.Warn("messages that were delivered before are missing, and later ones go on without them", "source", s.s.cfg.Name, "missing", s.missing-held.found)
	}
	return s.putAll(ctx, r, held)
}

// settled reports whether somebody else has seen to everything that was delivered before the session began.
func (s *session) settled(ctx context.Context) (bool, error) {
	asking, cancel := s.s.b.connected(ctx)
	defer cancel()
	info, err := s.consumer.Info(asking)
	return err == nil && info.AckFloor.Stream >= s.before, err
}

// putAll hands over what was collected, in its order, and keeps what has to wait for its turn.
func (s *session) putAll(ctx context.Context, r *broker.Receiver, held *collection) error {
	for len(held.all) > 0 && ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, s.ExtendInterval()/2)
		free := r.WaitFree(waiting, 1)
		cancel()
		if free == 0 {
			if err := s.ExtendAck(ctx, held.all); err != nil {
				return err
			}
			continue
		}
		if r.Put(ctx, held.all[0]) != nil {
			return nil // it ends, and the rest is given back
		}
		held.all = held.all[1:]
	}
	return nil
}

// collection is messages by their order.
type collection struct {
	all    []*broker.Incoming
	before uint64
	found  int // up to before
}

func (c *collection) add(in *broker.Incoming) {
	at, again := slices.BinarySearchFunc(c.all, in.Order, func(h *broker.Incoming, order uint64) int { return cmp.Compare(h.Order, order) })
	if again {
		c.all[at] = in // the server wants the answer to the latest delivery
		return
	}
	c.all = slices.Insert(c.all, at, in)
	if in.Order <= c.before {
		c.found++
	}
}

const (
	// recoverBatch is how many messages are asked for at once while some are missing.
	recoverBatch = 256
	// recoverPause is how long to wait before looking again for what is missing.
	recoverPause = 200 * time.Millisecond
)
