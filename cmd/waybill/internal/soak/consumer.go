package soak

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
)

// consume applies events until ctx ends.
func (c *child) consume(ctx context.Context) error {
	box, err := inbox.New(c.store.InSQL, inbox.Config{Logger: c.log})
	if err != nil {
		return err
	}
	group, err := box.Group("soak", inbox.Options{Lease: c.Lease, MaxAttempts: 1000, BackoffBase: 50 * time.Millisecond, BackoffMax: time.Second})
	if err != nil {
		return err
	}
	group.Handle(thing, moved, c.apply)
	group.Handle(thing, bought, c.apply)
	b, err := openBus(ctx, &c.spec, c.log)
	if err != nil {
		return err
	}
	defer b.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs := make([]error, len(c.Topics))
	for i, topic := range c.Topics {
		source, err := b.source(topic)
		if err != nil {
			return err
		}
		all.Go(func() {
			errs[i] = source.Run(ctx, &watchedGroup{Group: group, c: c, topic: topic})
			stop()
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// watchedGroup notes what arrives.
type watchedGroup struct {
	*inbox.Group[*sql.Tx]
	c     *child
	topic string

	mu    sync.Mutex
	count int
}

// Deliver implements [waybill.Sink].
func (g *watchedGroup) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	one := note{Kind: noteGot, Text: g.topic}
	for i := range batch {
		payload, headers := digest(&batch[i].Event)
		one.Items = append(one.Items, item{ID: batch[i].ID, Payload: payload, Headers: headers})
	}
	g.c.out.note(one)
	results := g.deliver(ctx, batch)
	g.c.place("between the effect and the acknowledgment")
	return results
}

func (g *watchedGroup) deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if g.c.Sabotage == "" {
		return g.Group.Deliver(ctx, batch)
	}
	return g.spoil(ctx, batch)
}

var errHandler = errors.New("the handler fails on purpose")

// apply is the consumer's handler: the effect is in the transaction of the
// inbox.
func (c *child) apply(ctx context.Context, tx *sql.Tx, ev waybill.Event) error {
	if c.Die > 0 && rand.IntN(64) == 0 { //nolint:gosec // a fault, not a secret
		return errHandler
	}
	if err := c.names.apply(ctx, tx, &ev); err != nil {
		return err
	}
	c.place("in the consumer's transaction")
	return nil
}

// apply writes the effect of an event.
func (t tables) apply(ctx context.Context, tx *sql.Tx, ev *waybill.Event) error {
	var l load
	if err := json.Unmarshal(ev.Payload, &l); err != nil {
		return waybill.Permanent(fmt.Errorf("the payload: %w", err))
	}
	place := int64(0)
	if ev.AggregateID != "" {
		name, err := strconv.Atoi(ev.AggregateID)
		if err != nil {
			return waybill.Permanent(err)
		}
		l.Name = name
		if _, err := tx.ExecContext(ctx, t.fill(`UPDATE {account} SET n = n + 1, total = total + ? WHERE name = ?`), l.Amount, name); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, t.fill(`SELECT n FROM {account} WHERE name = ?`), name).Scan(&place); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, t.fill(`INSERT INTO {effect} (id, name, number, amount, place, applied_at) VALUES (?, ?, ?, ?, ?, ?)`),
		ev.ID.String(), l.Name, l.Number, l.Amount, place, time.Now().UnixNano())
	return err
}
