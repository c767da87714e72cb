package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Tx is a transaction of a store made by [New], or a savepoint in one.
type Tx struct {
	txn    *txn
	parent *Tx
	mark   mark
	owned  bool
	done   bool // guarded by the tables' mutex
}

// mark is the length of each list of the transaction at a savepoint.
type mark struct{ events, finished, intakes, keySteps, sendings int }

// Begin sets a savepoint: a transaction inside this one, whose Rollback undoes
// later writes.
func (tx *Tx) Begin(context.Context) (*Tx, error) {
	if tx.closed() {
		return nil, waybill.ErrTxDone
	}
	return &Tx{txn: tx.txn, parent: tx, mark: tx.txn.mark()}, nil
}

// Commit ends the transaction or releases the savepoint. It fails on the handle
// of InTx.
func (tx *Tx) Commit(context.Context) error {
	if err := tx.end(); err != nil {
		return err
	}
	if tx.parent == nil {
		tx.txn.commit()
	}
	return nil
}

// Rollback ends the transaction without a trace, or rolls back to the
// savepoint. It fails on the handle of InTx.
func (tx *Tx) Rollback(context.Context) error {
	if err := tx.end(); err != nil {
		return err
	}
	if tx.parent == nil {
		tx.txn.rollback()
	} else {
		tx.txn.truncate(tx.mark)
	}
	return nil
}

func (tx *Tx) end() error {
	if tx.owned {
		return waybill.ErrTxOwned
	}
	tx.txn.tables.mu.Lock()
	defer tx.txn.tables.mu.Unlock()
	if tx.ended() {
		return waybill.ErrTxDone
	}
	tx.done = true
	return nil
}

// closed reports whether this transaction, or an enclosing one, has ended.
func (tx *Tx) closed() bool {
	tx.txn.tables.mu.Lock()
	defer tx.txn.tables.mu.Unlock()
	return tx.ended()
}

// ended is closed for callers that hold the tables' mutex.
func (tx *Tx) ended() bool {
	for t := tx; t != nil; t = t.parent {
		if t.done {
			return true
		}
	}
	return tx.txn.over
}

// errDeadlock is returned when two transactions wait for each other.
var errDeadlock = errors.New("memstore: deadlock: two transactions wait for each other")

// txn is an open transaction and its events. The tables' mutex guards its
// fields.
type txn struct {
	tables   *tables
	pending  []driver.Entry
	finished []finish  // recorded as done
	intakes  []intake  // accepted and succeeded
	keySteps []keyStep // changes of idempotency keys
	sendings []sending // events sent by jobs
	// Lanes with a checked fence: held until the end.
	shares []int
	ids    map[waybill.ID]bool // held until the end
	undone []waybill.ID
	keys   map[dedupKey]waybill.ID // reserved: held until the end
	waits  *txn                    // the transaction that this one waits for
	ended  chan struct{}
	over   bool
}

func newTxn(t *tables) *txn {
	return &txn{tables: t, ids: make(map[waybill.ID]bool), keys: make(map[dedupKey]waybill.ID), ended: make(chan struct{})}
}

func (x *txn) mark() mark {
	x.tables.mu.Lock()
	defer x.tables.mu.Unlock()
	return mark{
		events: len(x.pending), finished: len(x.finished), intakes: len(x.intakes), keySteps: len(x.keySteps), sendings: len(x.sendings),
	}
}

func (x *txn) append(ctx context.Context, evs []waybill.Event) ([]driver.AppendResult, error) {
	holders, err := x.reserve(ctx, evs)
	if err != nil {
		return nil, err
	}
	t := x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return nil, waybill.ErrTxDone
	}
	placed := make([]driver.AppendResult, len(evs))
	var entries []driver.Entry
	for i, ev := range evs {
		placed[i] = driver.AppendResult{ID: ev.ID, Lane: t.laneFor(ev)}
		if holder, ok := holders[keyOf(ev)]; ok && ev.DedupKey != "" && holder != ev.ID {
			placed[i].ID = holder
			continue
		}
		if err := x.take(ctx, ev.ID); err != nil {
			return nil, err
		}
		entries = append(entries, driver.Entry{Event: ev, Lane: placed[i].Lane})
	}
	x.pending = append(x.pending, entries...)
	return placed, nil
}

// take reserves an event's id. It waits for another open transaction that has
// reserved the id, as a database would; mu is held.
func (x *txn) take(ctx context.Context, id waybill.ID) error {
	t := x.tables
	for t.writing[id] != nil && t.writing[id] != x {
		if err := x.wait(ctx, t.writing[id]); err != nil {
			return err
		}
	}
	if x.ids[id] || t.rows[id] != nil {
		return fmt.Errorf("memstore: duplicate id %s", id)
	}
	x.ids[id], t.writing[id] = true, x
	return nil
}

// reserve takes the dedup keys of evs and returns the holder of each key. It
// waits for another open transaction that has reserved a key, as a database
// would; keys are taken in sorted order, so that single writes cannot deadlock.
func (x *txn) reserve(ctx context.Context, evs []waybill.Event) (map[dedupKey]waybill.ID, error) {
	first := make(map[dedupKey]waybill.ID)
	for _, ev := range evs {
		if _, dup := first[keyOf(ev)]; ev.DedupKey != "" && !dup {
			first[keyOf(ev)] = ev.ID
		}
	}
	keys := make([]dedupKey, 0, len(first))
	for k := range first {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b dedupKey) int {
		if c := strings.Compare(a.tenant, b.tenant); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
	for _, k := range keys {
		holder, err := x.reserveOne(ctx, k, first[k])
		if err != nil {
			return nil, err
		}
		first[k] = holder
	}
	return first, nil
}

func (x *txn) reserveOne(ctx context.Context, k dedupKey, id waybill.ID) (waybill.ID, error) {
	t := x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if x.over {
			return id, waybill.ErrTxDone
		}
		if holder, ok := t.dedup[k]; ok {
			return holder, nil
		}
		other := t.reserved[k]
		if other == nil || other == x {
			if holder, mine := x.keys[k]; mine {
				id = holder
			}
			x.keys[k], t.reserved[k] = id, x
			return id, nil
		}
		if err := x.wait(ctx, other); err != nil {
			return id, err
		}
	}
}

// wait returns when the other transaction has ended. mu is held, but not during
// the wait.
func (x *txn) wait(ctx context.Context, other *txn) error {
	for w := other; w != nil; w = w.waits {
		if w == x {
			return errDeadlock
		}
	}
	x.waits = other
	x.tables.mu.Unlock()
	var err error
	select {
	case <-other.ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	x.tables.mu.Lock()
	x.waits = nil
	if err == nil && x.over {
		err = waybill.ErrTxDone
	}
	return err
}

// truncate undoes the changes after the mark, and releases the keys of the
// undone events.
func (x *txn) truncate(to mark) {
	t := x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	x.keep(to.finished)
	x.forgetIntakes(to.intakes)
	x.forgetKeys(to.keySteps)
	x.forgetSendings(to.sendings)
	for _, e := range x.pending[to.events:] {
		x.undone = append(x.undone, e.Event.ID)
		delete(x.ids, e.Event.ID)
		delete(t.writing, e.Event.ID)
		if k := keyOf(e.Event); x.keys[k] == e.Event.ID {
			delete(x.keys, k)
			delete(t.reserved, k)
		}
	}
	x.pending = x.pending[:to.events]
}

func (x *txn) commit() driver.CommitInfo {
	t := x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return driver.CommitInfo{Undone: x.undone, Checked: true}
	}
	now := clock()
	for _, f := range x.finished {
		if r := t.rows[f.id]; r != nil && r.pending() && r.Lane == f.lane {
			t.deliver(r, f.history, now)
		}
	}
	x.settleIntakes()
	x.settleKeys()
	x.settleSendings()
	for k, id := range x.keys {
		t.dedup[k] = id
	}
	for _, e := range x.pending {
		t.insert(e)
	}
	x.end()
	return driver.CommitInfo{Undone: x.undone, Checked: true}
}

func (x *txn) rollback() {
	x.tables.mu.Lock()
	defer x.tables.mu.Unlock()
	if !x.over {
		x.end()
	}
}

// abandon ends the transaction without its events. If the outcome of the commit
// is uncertain, abandon records that: answering "not committed" would make the
// caller repeat its work.
func (x *txn) abandon(uncertain bool) {
	x.tables.mu.Lock()
	defer x.tables.mu.Unlock()
	if x.over {
		return
	}
	if uncertain {
		for _, e := range x.pending {
			x.tables.lost[e.Event.ID] = struct{}{}
		}
	}
	x.end()
}

// end closes the transaction; the tables' mutex is held.
func (x *txn) end() {
	for id := range x.ids {
		delete(x.tables.writing, id)
	}
	for k := range x.keys {
		delete(x.tables.reserved, k)
	}
	x.keep(0)
	x.forgetIntakes(0)
	x.forgetKeys(0)
	x.forgetSendings(0)
	for _, lane := range x.shares {
		delete(x.tables.lanes[lane].shared, x)
	}
	x.over = true
	close(x.ended)
}
