package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// modelChecks compare random transactions with a model.
func modelChecks[T any]() []check[T] {
	return []check[T]{{row: "random_transactions", name: "random transactions", run: randomTransactions[T]}}
}

// seedVariable repeats a run of the random check.
const seedVariable = "DRIVERTEST_SEED"

// model is the expected contents of the tables after a sequence of transactions
// and settlements. It has no concurrency and no time: a deferred event never
// becomes due.
type model struct {
	ready   []waybill.Event // in the order of seq
	delayed []waybill.Event
	ended   []waybill.Event       // done or dead
	undone  []waybill.Event       // never committed
	keys    map[string]waybill.ID // dedup key → holder
	raising []waybill.Event       // written in the open transaction, in order
	taken   map[string]waybill.ID // keys of the open transaction
}

// write returns the expected receipt of an event.
func (m *model) write(ev waybill.Event) outbox.Receipt {
	if ev.DedupKey != "" {
		for _, keys := range []map[string]waybill.ID{m.keys, m.taken} {
			if holder, ok := keys[ev.DedupKey]; ok {
				m.undone = append(m.undone, ev)
				return outbox.Receipt{ID: holder, Outcome: outbox.Duplicate}
			}
		}
		m.taken[ev.DedupKey] = ev.ID
	}
	m.raising = append(m.raising, ev)
	return written(ev)
}

// undo removes the events written after the first n.
func (m *model) undo(n int) {
	for _, ev := range m.raising[n:] {
		m.undone = append(m.undone, ev)
		if m.taken[ev.DedupKey] == ev.ID {
			delete(m.taken, ev.DedupKey)
		}
	}
	m.raising = m.raising[:n]
}

// end ends the open transaction.
func (m *model) end(commit bool) {
	if !commit {
		m.undo(0)
	}
	for key, id := range m.taken {
		m.keys[key] = id
	}
	for _, ev := range m.raising {
		if ev.Delayed() {
			m.delayed = append(m.delayed, ev)
		} else {
			m.ready = append(m.ready, ev)
		}
	}
	m.raising, m.taken = nil, map[string]waybill.ID{}
}

// settle moves a pending event.
func (m *model) settle(ev waybill.Event, retry bool) {
	is := func(other waybill.Event) bool { return other.ID == ev.ID }
	m.ready, m.delayed = slices.DeleteFunc(m.ready, is), slices.DeleteFunc(m.delayed, is)
	if retry {
		m.delayed = append(m.delayed, ev)
		return
	}
	m.ended = append(m.ended, ev)
	if m.keys[ev.DedupKey] == ev.ID {
		delete(m.keys, ev.DedupKey)
	}
}

func randomTransactions[T any](ctx context.Context, t tb, b *env[T]) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
		seed = given
	}
	t.Logf("%s=%d repeats this run", seedVariable, seed)
	w := &walk[T]{
		env: b, t: t, rnd: rand.New(rand.NewPCG(seed, 1)), leases: b.own(ctx, t),
		model: model{keys: map[string]waybill.ID{}, taken: map[string]waybill.ID{}},
	}
	w.box = b.box(t, w.hooks.hook())
	for step := range 60 {
		if w.rnd.IntN(3) > 0 {
			w.transaction(ctx)
		} else {
			w.settlement(ctx)
		}
		w.compare(ctx, step)
	}
	wantBatches(t, "AfterCommit", w.hooks.committed, w.batches)
	for _, list := range [][]waybill.Event{w.model.ready, w.model.delayed, w.model.ended} {
		b.wantCommitted(ctx, t, true, list...)
	}
	b.wantCommitted(ctx, t, false, w.model.undone...)
}

// walk is one random sequence.
type walk[T any] struct {
	*env[T]
	t       tb
	rnd     *rand.Rand
	box     *outbox.Outbox[T]
	hooks   record
	leases  []driver.Lease
	model   model
	batches [][]waybill.Event // expected batches of AfterCommit
}

// transaction writes some events, with savepoints if supported, and commits or
// rolls back.
func (w *walk[T]) transaction(ctx context.Context) {
	commit := w.rnd.IntN(4) > 0
	err := w.box.InTx(ctx, func(ctx context.Context, tx T) error {
		for range 1 + w.rnd.IntN(4) {
			if err := w.part(ctx, tx); err != nil {
				return err
			}
		}
		if !commit {
			return errBoom
		}
		return nil
	})
	if commit != (err == nil) || !commit && !errors.Is(err, errBoom) {
		w.t.Fatalf("InTx: %v", err)
	}
	if commit && len(w.model.raising) > 0 {
		w.batches = append(w.batches, slices.Clone(w.model.raising))
	}
	w.model.end(commit)
}

// part is one write, or a savepoint around one.
func (w *walk[T]) part(ctx context.Context, tx T) error {
	if w.features.lacks(savepoints) != "" || w.rnd.IntN(3) > 0 {
		return w.write(ctx, tx)
	}
	start, back := len(w.model.raising), w.rnd.IntN(2) == 0
	sp := savepointText[T]
	if w.features.SavepointAPI {
		sp = func(ctx context.Context, b *env[T], tx T, fn func(T) error) error { return b.Savepoint(ctx, tx, fn) }
	}
	err := sp(ctx, w.env, tx, func(tx T) error {
		if err := w.write(ctx, tx); err != nil || !back {
			return err
		}
		return errBoom
	})
	if back && errors.Is(err, errBoom) {
		w.model.undo(start)
		return nil
	}
	return err
}

func (w *walk[T]) write(ctx context.Context, tx T) error {
	var evs []waybill.Event
	var want []outbox.Receipt
	for range 1 + w.rnd.IntN(4) {
		ev := w.event([]string{"", "a", "b", "c"}[w.rnd.IntN(4)])
		if w.rnd.IntN(3) == 0 {
			ev.DedupKey = w.unique(fmt.Sprintf("k%d", w.rnd.IntN(6)))
		}
		if w.rnd.IntN(8) == 0 {
			ev.Delay = defaultLease
		}
		evs, want = append(evs, ev), append(want, w.model.write(ev))
	}
	if w.rnd.IntN(2) == 0 {
		return w.box.Write(ctx, tx, evs...)
	}
	got, err := w.box.WriteEach(ctx, tx, evs...)
	if err == nil {
		wantReceipts(w.t, got, want...)
	}
	return err
}

// settlement settles a few random pending events, and one that is not pending.
func (w *walk[T]) settlement(ctx context.Context) {
	s := driver.Settlement{Leases: w.leases, History: true}
	rows := w.ready(ctx, w.t)
	var moved []waybill.ID
	pending := slices.Concat(w.model.ready, w.model.delayed)
	for _, i := range w.rnd.Perm(len(pending))[:min(len(pending), 1+w.rnd.IntN(4))] {
		ev := pending[i]
		r := driver.Result{Lane: w.laneOf(ev), ID: ev.ID, Attempts: 1, Delay: defaultLease, Error: "random"}
		if row, ok := find(rows, ev.ID); ok {
			r.Lane = row.Lane
		} else if !ev.Ordered() {
			continue // deferred, in the lane of its row
		}
		kind := w.rnd.IntN(3)
		switch kind {
		case 0:
			s.Done = append(s.Done, r)
		case 1:
			s.Retry = append(s.Retry, r)
		case 2:
			s.Dead = append(s.Dead, r)
		}
		w.model.settle(ev, kind == 1)
		moved = append(moved, ev.ID)
	}
	if n := len(w.model.ended); n > 0 {
		old := w.model.ended[w.rnd.IntN(n)]
		if !slices.Contains(moved, old.ID) {
			s.Retry = append(s.Retry, driver.Result{Lane: w.laneOf(old), ID: old.ID})
		}
	}
	wantMoved(w.t, w.settle(ctx, w.t, s), moved...)
}

// compare asserts that the tables equal the model.
func (w *walk[T]) compare(ctx context.Context, step int) {
	rows := w.ready(ctx, w.t)
	if got, want := rowIDs(rows), idsOf(w.model.ready); !slices.Equal(got, want) {
		w.t.Fatalf("after step %d %d events are ready, want %d: %v, want %v", step, len(got), len(want), got, want)
	}
	for i, row := range rows {
		if diffs := differences(row.Event, w.model.ready[i]); len(diffs) > 0 || row.Err != nil {
			w.t.Fatalf("after step %d event %s reads as %v, %v", step, row.ID, diffs, row.Err)
		}
		if ev := w.model.ready[i]; ev.Ordered() && row.Lane != w.laneOf(ev) {
			w.t.Errorf("event %s is in lane %d, want %d", ev.ID, row.Lane, w.laneOf(ev))
		}
	}
	for _, row := range w.due(ctx, w.t).Rows {
		if slices.Contains(idsOf(w.model.delayed), row.ID) {
			w.t.Errorf("event %s is due, and was deferred for a long time", row.ID)
		}
	}
}
