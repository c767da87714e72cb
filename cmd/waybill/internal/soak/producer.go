package soak

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// txTimeout bounds a transaction while a server does not answer.
const txTimeout = 30 * time.Second

var errOnPurpose = errors.New("rolled back on purpose")

// produce commits and rolls back transactions until ctx ends.
func (c *child) produce(ctx context.Context) error {
	box, err := outbox.New(c.store.InSQL, outbox.Config{Logger: c.log})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		n := c.transaction(ctx, box)
		pause(ctx, time.Duration(float64(time.Second)*float64(n)/c.Rate))
	}
	return nil
}

// transaction runs one transaction and returns its number of events.
func (c *child) transaction(ctx context.Context, box *outbox.Outbox[*sql.Tx]) int {
	// Running transactions are not canceled by the end of the soak.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), txTimeout)
	defer cancel()
	names := c.draw()
	back := c.random.IntN(7) == 0
	var evs []waybill.Event
	err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var entries []entry
		var err error
		if evs, entries, err = c.events(ctx, tx, names); err != nil {
			return err
		}
		if err := box.Write(ctx, tx, evs...); err != nil {
			return err
		}
		c.place("in a transaction, after the write")
		if err := c.names.record(ctx, tx, entries); err != nil {
			return err
		}
		c.place("in a transaction, before the commit")
		if back {
			return errOnPurpose
		}
		return nil
	})
	if err == nil {
		c.place("after the commit")
	}
	c.tell(err, evs)
	if errors.Is(err, errOnPurpose) {
		c.spoilRollback(ctx, box, evs)
	}
	return len(names)
}

// draw draws the aggregates of a transaction, in ascending order, so that
// transactions do not block each other.
func (c *child) draw() []int {
	var names []int
	name := c.random.IntN(aggregates)
	for range 1 + c.random.IntN(4) {
		switch c.random.IntN(5) {
		case 0:
			names = append(names, unordered)
		case 1:
			name = c.random.IntN(aggregates)
			names = append(names, name)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// events numbers the events of a transaction.
func (c *child) events(ctx context.Context, tx *sql.Tx, names []int) ([]waybill.Event, []entry, error) {
	evs, entries := make([]waybill.Event, 0, len(names)), make([]entry, 0, len(names))
	for _, name := range names {
		number := int64(0)
		if name != unordered {
			var err error
			if number, err = c.names.advance(ctx, tx, name, 1); err != nil {
				return nil, nil, err
			}
		}
		ev, e := c.draft(name, number)
		evs, entries = append(evs, ev), append(entries, e)
	}
	return evs, entries, nil
}

// tell records the outcome of a transaction that InTx returned to the producer.
func (c *child) tell(err error, evs []waybill.Event) {
	one := note{Kind: noteTx, Text: committed}
	switch {
	case err == nil:
	case errors.Is(err, waybill.ErrUncertain):
		one.Text = uncertain
	default:
		one.Text = rolledBack
		if c.Sabotage == Claim && errors.Is(err, errOnPurpose) {
			one.Text = committed
			c.spoiled("a transaction was reported as committed", evs[0].ID)
		}
	}
	for i := range evs {
		one.Items = append(one.Items, item{ID: evs[i].ID})
	}
	c.out.note(one)
	if err != nil && !errors.Is(err, errOnPurpose) {
		c.out.failed("transaction", err)
		pause(context.Background(), 200*time.Millisecond)
	}
}

// spoilRollback writes events that were rolled back.
func (c *child) spoilRollback(ctx context.Context, box *outbox.Outbox[*sql.Tx], evs []waybill.Event) {
	if c.Sabotage != Phantom {
		return
	}
	err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) })
	if err == nil {
		c.spoiled("events of a transaction that was rolled back were written", evs[0].ID)
	}
}
