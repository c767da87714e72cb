package memstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

// ledger is a custom database with one table of notes.
type ledger struct {
	mu    sync.Mutex
	notes map[string]int
}

// entryTx is a transaction of a ledger. Its handle rejects Commit and Rollback.
type entryTx struct {
	ledger *ledger
	notes  []string
}

func (*entryTx) Commit() error   { return waybill.ErrTxOwned }
func (*entryTx) Rollback() error { return waybill.ErrTxOwned }

func (l *ledger) begin(context.Context, *sql.TxOptions) (memstore.Handle[*entryTx], error) {
	tx := &entryTx{ledger: l}
	return memstore.Handle[*entryTx]{
		Tx: tx,
		Commit: func(context.Context) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, note := range tx.notes {
				l.notes[note]++
			}
			return nil
		},
		Rollback: func(context.Context) error { return nil },
	}, nil
}

// Over foreign transactions the store supports everything except savepoints and
// transactions that it did not begin.
func TestOver(t *testing.T) {
	drivertest.Run(t, drivertest.Harness[*entryTx]{
		Name:     "memstore.Over",
		Features: drivertest.Features{StoredHeaders: true},
		Open: func(t *testing.T) drivertest.Instance[*entryTx] {
			l := &ledger{notes: map[string]int{}}
			db, err := memstore.Over(l.begin, memstore.Config{Lanes: 4})
			if err != nil {
				t.Fatal(err)
			}
			return drivertest.Instance[*entryTx]{
				DB: db.Driver(),
				Insert: func(_ context.Context, tx *entryTx, note string) error {
					tx.notes = append(tx.notes, note)
					return nil
				},
				Count: func(_ context.Context, note string) (int, error) {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.notes[note], nil
				},
				SetHeaders: func(_ context.Context, id waybill.ID, text string) error { return memstore.SetHeaders(db, id, text) },
			}
		},
	})
}

// over returns an outbox whose transactions end with the given errors.
func over(t *testing.T, commit, rollback error) (*outbox.Outbox[*int], *memstore.Store[*int]) {
	t.Helper()
	db, err := memstore.Over(func(context.Context, *sql.TxOptions) (memstore.Handle[*int], error) {
		return memstore.Handle[*int]{
			Tx:       new(int),
			Commit:   func(context.Context) error { return commit },
			Rollback: func(context.Context) error { return rollback },
		}, nil
	}, memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return box, db
}

// A commit with a definite error leaves nothing; the outcome of an uncertain
// commit is never reported as "not committed".
func TestOverCommitFails(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name            string
		commit          error
		uncertain, owed bool
	}{
		{"refused", boom, false, false},
		{"uncertain", fmt.Errorf("%w: %w", waybill.ErrUncertain, boom), true, false},
		{"ended inside", sql.ErrTxDone, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			box, db := over(t, c.commit, nil)
			ev := waybill.NewEvent("t", nil)
			ev.ID = waybill.NewID()
			err := box.InTx(t.Context(), func(ctx context.Context, tx *int) error { return box.Write(ctx, tx, ev) })
			if err == nil || errors.Is(err, waybill.ErrUncertain) != c.uncertain || errors.Is(err, waybill.ErrTxOwned) != c.owed {
				t.Errorf("InTx: %v", err)
			}
			yes, err := box.Committed(t.Context(), ev.ID)
			if yes || errors.Is(err, waybill.ErrUncertain) != c.uncertain {
				t.Errorf("Committed: %v, %v", yes, err)
			}
			if page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: 0}}, 1); err != nil || len(page.Rows) != 0 {
				t.Errorf("Fetch: %v, %v", page.Rows, err)
			}
			if yes, err := box.Committed(t.Context(), waybill.NewID()); yes || err != nil {
				// Other events are not affected.
				t.Errorf("Committed of another event: %v, %v", yes, err)
			}
		})
	}
}

// The caller finds out that nothing was committed and retries with the same
// event: the event then exists.
func TestOverUncertainThenCommitted(t *testing.T) {
	answers := []error{waybill.ErrUncertain, nil}
	db, err := memstore.Over(func(context.Context, *sql.TxOptions) (memstore.Handle[*int], error) {
		return memstore.Handle[*int]{
			Tx: new(int),
			Commit: func(context.Context) error {
				answer := answers[0]
				answers = answers[1:]
				return answer
			},
			Rollback: func(context.Context) error { return nil },
		}, nil
	}, memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev := waybill.NewEvent("t", nil)
	ev.ID = waybill.NewID()
	write := func(ctx context.Context, tx *int) error { return box.Write(ctx, tx, ev) }
	if err := box.InTx(t.Context(), write); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("the first attempt: %v", err)
	}
	if err := box.InTx(t.Context(), write); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
	if yes, err := box.Committed(t.Context(), ev.ID); !yes || err != nil {
		t.Errorf("Committed: %v, %v", yes, err)
	}
}

func TestOverRollbackFails(t *testing.T) {
	boom, own := errors.New("boom"), errors.New("the function's own")
	box, _ := over(t, nil, boom)
	err := box.InTx(t.Context(), func(context.Context, *int) error { return own })
	if !errors.Is(err, own) || !errors.Is(err, boom) {
		t.Errorf("InTx: %v, want both errors", err)
	}
	box, _ = over(t, nil, sql.ErrTxDone) // the function committed, then failed
	ev := waybill.NewEvent("t", nil)
	ev.ID = waybill.NewID()
	err = box.InTx(t.Context(), func(ctx context.Context, tx *int) error { return errors.Join(box.Write(ctx, tx, ev), own) })
	if !errors.Is(err, own) || !errors.Is(err, waybill.ErrTxOwned) || !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx: %v, want the function's own error and ErrUncertain", err)
	}
	if yes, err := box.Committed(t.Context(), ev.ID); yes || !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Committed: %v, %v", yes, err)
	}
}

// The store does not see the end of a transaction that it did not begin.
func TestOverRefusesOtherTransactions(t *testing.T) {
	box, db := over(t, nil, nil)
	if err := box.Write(t.Context(), new(int), waybill.NewEvent("t", nil)); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Write: %v, want ErrNoTx", err)
	}
	if _, err := db.Driver().Outbox.Append(t.Context(), nil, nil); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Append: %v, want ErrNoTx", err)
	}
}

func TestOverBegin(t *testing.T) {
	if _, err := memstore.Over[*int](nil, memstore.Config{}); err == nil {
		t.Error("Over accepted no way to begin")
	}
	boom := errors.New("boom")
	db, err := memstore.Over(func(context.Context, *sql.TxOptions) (memstore.Handle[*int], error) {
		return memstore.Handle[*int]{}, boom
	}, memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Driver().Outbox.Begin(t.Context(), nil); !errors.Is(err, boom) {
		t.Errorf("Begin: %v", err)
	}
}
