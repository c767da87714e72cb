package natsbroker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/driver"
)

// quiet returns the consumer's state when no fetch is pending. A crashed
// process, or this one before its connection was lost, may have left a pending
// fetch that takes messages until it expires. Those messages would be delivered
// after later ones, unnoticed.
func quiet(ctx context.Context, c jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	for expired := time.Now().Add(2 * fetchWait); ; {
		info, err := c.Info(ctx)
		// By then the fetch belongs to a live process: a group without order.
		if err != nil || info.NumWaiting == 0 || time.Now().After(expired) {
			return info, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(fetchWait / 10):
		}
	}
}

// recover takes the messages that were delivered before the session began and
// never answered, before any newer message: the process that had them crashed,
// or they were lost with the connection. The server redelivers such messages in
// any order, after AckWait, with newer messages in between. None is handed out
// before all of them have arrived.
func (s *session) recover(ctx context.Context, r *driver.Receiver) error {
	held := &collection{before: s.before}
	defer func() {
		for _, in := range held.all { // not put: ctx has ended, or the connection is lost
			s.release(in)
		}
	}()
	limit := s.s.cfg.AckWait + s.s.cfg.AckWait/2 + time.Second // time for one more message to arrive
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
		next = 1 // limits the number of newer messages in memory
		select {
		case <-ctx.Done():
		case <-time.After(recoverPause):
		}
	}
	if held.found < s.missing && ctx.Err() == nil {
		s.s.b.log.Warn("redelivery of earlier messages timed out; continuing with later ones", "source", s.s.cfg.Name, "missing", s.missing-held.found)
	}
	return s.putAll(ctx, r, held)
}

// settled reports whether other consumers have acknowledged all messages that
// were delivered before the session began.
func (s *session) settled(ctx context.Context) (bool, error) {
	asking, cancel := s.s.b.connected(ctx)
	defer cancel()
	info, err := s.consumer.Info(asking)
	return err == nil && info.AckFloor.Stream >= s.before, err
}

// putAll passes the collected messages to the receiver, in order, and extends
// the deadlines of those that wait.
func (s *session) putAll(ctx context.Context, r *driver.Receiver, held *collection) error {
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
			return nil // ending; the remaining messages are released
		}
		held.all = held.all[1:]
	}
	return nil
}

// collection holds messages sorted by their order.
type collection struct {
	all    []*driver.Incoming
	before uint64
	found  int // messages up to before
}

func (c *collection) add(in *driver.Incoming) {
	at, again := slices.BinarySearchFunc(c.all, in.Order, func(h *driver.Incoming, order uint64) int { return cmp.Compare(h.Order, order) })
	if again {
		c.all[at] = in // the server expects the answer to the latest delivery
		return
	}
	c.all = slices.Insert(c.all, at, in)
	if in.Order <= c.before {
		c.found++
	}
}

const (
	// recoverBatch is the number of messages per fetch while messages are
	// missing.
	recoverBatch = 256
	// recoverPause is the interval between fetches for missing messages.
	recoverPause = 200 * time.Millisecond
)
