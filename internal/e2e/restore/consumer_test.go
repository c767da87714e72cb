//go:build linux || darwin

package restore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
)

// order is the payload of an event: the number-th of its account.
type order struct {
	Number int   `json:"number"`
	Amount int64 `json:"amount"`
}

var orderPlaced = waybill.Define[order]("OrderPlaced", waybill.Spec{AggregateType: "account"}) //nolint:gochecknoglobals // a definition

// accounts is the number of accounts.
const accounts = 8

// shop writes orders, and remembers what it has written.
type shop struct {
	*testing.T
	box    *outbox.Outbox[*sql.Tx]
	number [accounts]int
	sums   [accounts]int64
	ids    []waybill.ID
}

// on continues in an opened database.
func (s *shop) on(at *tables) {
	s.Helper()
	var err error
	s.box, err = outbox.New(at.Roles, outbox.Config{})
	must(s.T, err)
}

// write commits n orders, in small transactions, and returns their ids.
func (s *shop) write(n int) []waybill.ID {
	s.Helper()
	var ids []waybill.ID
	for len(ids) < n {
		var evs []waybill.Event
		for range min(5, n-len(ids)) {
			account := (len(s.ids) + len(evs)) % accounts
			s.number[account]++
			o := order{Number: s.number[account], Amount: int64(7*len(s.ids)+len(evs))%2001 - 1000}
			s.sums[account] += o.Amount
			ev := orderPlaced.New(fmt.Sprint("a", account), o)
			ev.ID = waybill.NewID()
			evs = append(evs, ev)
		}
		s.commit(evs...)
		for _, ev := range evs {
			ids, s.ids = append(ids, ev.ID), append(s.ids, ev.ID)
		}
	}
	return ids
}

// schedule commits n events without an amount, each of an aggregate of its own,
// that are due after a delay.
func (s *shop) schedule(n int, delay time.Duration) {
	s.Helper()
	for i := range n {
		ev := orderPlaced.New(fmt.Sprint("later", i), order{})
		ev.AvailableAt = time.Now().Add(delay)
		s.commit(ev)
	}
}

func (s *shop) commit(evs ...waybill.Event) {
	s.Helper()
	must(s.T, s.box.InTx(s.Context(), func(ctx context.Context, tx *sql.Tx) error { return s.box.Write(ctx, tx, evs...) }))
}

// billing applies orders to accounts in a database of its own, once each, in
// their order.
type billing struct {
	*testing.T
	mu    sync.RWMutex
	at    *tables
	group *inbox.Group[*sql.Tx]
}

// on continues in an opened database.
func (b *billing) on(at *tables) {
	b.Helper()
	in, err := inbox.New[*sql.Tx](at.Roles, inbox.Config{Logger: logger(b.T)})
	must(b.T, err)
	g := in.MustGroup("billing", inbox.Options{})
	inbox.On(g, orderPlaced, b.apply)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at, b.group = at, g
}

// create creates the accounts.
func (b *billing) create() {
	b.Helper()
	_, err := b.at.db.ExecContext(b.Context(), `CREATE TABLE account (id varchar(10) PRIMARY KEY, balance bigint NOT NULL, last int NOT NULL)`)
	must(b.T, err)
	for i := range accounts {
		_, err := b.at.db.ExecContext(b.Context(), fmt.Sprintf(`INSERT INTO account VALUES ('a%d', 0, 0)`, i))
		must(b.T, err)
	}
}

// Deliver implements [waybill.Sink].
func (b *billing) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.group.Deliver(ctx, batch)
}

func (b *billing) apply(ctx context.Context, tx *sql.Tx, ev waybill.Event, o order) error {
	if o.Number == 0 {
		return nil // a scheduled event, which is in no order
	}
	result, err := tx.ExecContext(ctx, fmt.Sprintf(`UPDATE account SET balance = balance + (%d), last = %[2]d WHERE id = '%[3]s' AND last = %[2]d - 1`,
		o.Amount, o.Number, ev.AggregateID))
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("order %d of %s is not the next one", o.Number, ev.AggregateID))
	}
	return nil
}

// sums returns the balances and the number of orders of all accounts.
func (b *billing) sums() (sums [accounts]int64, numbers [accounts]int) {
	b.Helper()
	for i := range accounts {
		must(b.T, b.at.db.QueryRowContext(b.Context(), fmt.Sprintf(`SELECT balance, last FROM account WHERE id = 'a%d'`, i)).Scan(&sums[i], &numbers[i]))
	}
	return sums, numbers
}

// ledger is what sinks received.
type ledger struct {
	mu  sync.Mutex
	all []receipt
}

// receipt is one delivery that a destination has received.
type receipt struct {
	waybill.Delivery
	destination string
	// again: after the restoration.
	again bool
	// old: the destination refused the position as old.
	old bool
}

func (l *ledger) add(r receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
}

// receipts returns what was received.
func (l *ledger) receipts() []receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]receipt(nil), l.all...)
}
