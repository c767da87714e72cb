package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func open(t *testing.T) *memstore.Store[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func keyed(key string) []waybill.Event {
	ev := waybill.NewEvent("t", nil)
	ev.DedupKey = key
	return []waybill.Event{eventfill.Defaults(ev)}
}

func TestConfig(t *testing.T) {
	for lanes, ok := range map[int]bool{0: true, 1: true, 1024: true, 1025: false, -1: false} {
		if _, err := memstore.New(memstore.Config{Lanes: lanes}); (err == nil) != ok {
			t.Errorf("%d lanes: %v", lanes, err)
		}
	}
	if _, err := memstore.New(memstore.Config{Lanes: -1}); err == nil || err.Error() != "memstore: Config.Lanes: -1 is not between 1 and 1024" {
		t.Errorf("the error is %v", err)
	}
}

func TestSavepointsEndOnce(t *testing.T) {
	ctx := t.Context()
	db := open(t)
	tx := memstore.BeginTx(db)
	sp, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := sp.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := sp.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// The inner savepoint has ended with it.
	for name, err := range map[string]error{
		"rollback again": sp.Rollback(ctx), "commit": sp.Commit(ctx), "commit inside": inner.Commit(ctx), "rollback inside": inner.Rollback(ctx),
	} {
		if !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("%s: %v, want ErrTxDone", name, err)
		}
	}
	for name, old := range map[string]*memstore.Tx{"savepoint": sp, "inside": inner} {
		if _, err := db.Driver().Outbox.Append(ctx, old, keyed("")); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("Append to the %s: %v, want ErrTxDone", name, err)
		}
		if _, err := old.Begin(ctx); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("Begin in the %s: %v, want ErrTxDone", name, err)
		}
	}
	if _, err := db.Driver().Outbox.Append(ctx, tx, keyed("")); err != nil {
		t.Errorf("the transaction around it: %v", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("committed twice: %v", err)
	}
}

func TestTransactionsOfAnotherStore(t *testing.T) {
	one, two := open(t), open(t)
	if _, err := one.Driver().Outbox.Append(t.Context(), memstore.BeginTx(two), keyed("")); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Append: %v, want ErrNoTx", err)
	}
	if _, err := one.Driver().Outbox.Append(t.Context(), nil, keyed("")); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Append to nil: %v, want ErrNoTx", err)
	}
}

// Two transactions that wait for each other would wait forever: one of them
// gets an error.
func TestDeadlockIsFound(t *testing.T) {
	ctx := t.Context()
	db := open(t)
	one, two := memstore.BeginTx(db), memstore.BeginTx(db)
	for tx, key := range map[*memstore.Tx]string{one: "a", two: "b"} {
		if _, err := db.Driver().Outbox.Append(ctx, tx, keyed(key)); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	for tx, key := range map[*memstore.Tx]string{one: "b", two: "a"} {
		go func() {
			_, err := db.Driver().Outbox.Append(ctx, tx, keyed(key))
			if err != nil { // as a database does with its victim
				err = errors.Join(err, tx.Rollback(ctx))
			}
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if (first == nil) == (second == nil) {
		t.Errorf("two that wait for each other: %v and %v, want one to fail", first, second)
	}
}

// A wait for a key ends with its context and with its own transaction.
func TestWaitEnds(t *testing.T) {
	db := open(t)
	holder := memstore.BeginTx(db)
	if _, err := db.Driver().Outbox.Append(t.Context(), holder, keyed("k")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := db.Driver().Outbox.Append(ctx, memstore.BeginTx(db), keyed("k"))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Append: %v, want the context's error", err)
	}
	waiter := memstore.BeginTx(db)
	go func() {
		_, err := db.Driver().Outbox.Append(t.Context(), waiter, keyed("k"))
		done <- err
	}()
	if err := waiter.Rollback(t.Context()); err != nil {
		// Concurrent rollback, before or during the wait.
		t.Fatal(err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Append: %v, want ErrTxDone", err)
	}
}

// A write waits for an open transaction that has the same id, and succeeds only
// if that transaction rolls back.
func TestSameIDInTwoTransactions(t *testing.T) {
	for _, commit := range []bool{true, false} {
		db := open(t)
		evs := keyed("")
		first, second := memstore.BeginTx(db), memstore.BeginTx(db)
		if _, err := db.Driver().Outbox.Append(t.Context(), first, evs); err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := db.Driver().Outbox.Append(gone, memstore.BeginTx(db), evs); !errors.Is(err, context.Canceled) {
			t.Errorf("Append: %v, want it to have waited for as long as its context", err)
		}
		done := make(chan error)
		go func() {
			_, err := db.Driver().Outbox.Append(t.Context(), second, evs)
			done <- err
		}()
		end := first.Rollback
		if commit {
			end = first.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; (err == nil) == commit {
			t.Errorf("the first committed: %v; the second: %v", commit, err)
		}
	}
}

// Rows that were read share no memory with the store.
func TestRowsAreCopies(t *testing.T) {
	db := open(t)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev := waybill.NewEvent("t", "original")
	ev.Headers = map[string]string{"a": "1"}
	err = box.InTx(t.Context(), func(ctx context.Context, _ *memstore.Tx) error { return box.Emit(ctx, ev) })
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{}}, 1)
		if err != nil || len(page.Rows) != 1 {
			t.Fatal(page, err)
		}
		got := page.Rows[0].Event
		if string(got.Payload) != `"original"` || got.Headers["a"] != "1" {
			t.Fatalf("read are %s and %v", got.Payload, got.Headers)
		}
		got.Payload[1], got.Headers["a"] = 'X', "X"
	}
}

func Example() {
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		panic(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	err = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error {
		return box.Write(ctx, tx, waybill.NewEvent("OrderPlaced", nil), waybill.NewEvent("OrderPaid", nil))
	})
	fmt.Println(err)
	page, err := db.Driver().Relay.Fetch(ctx, []driver.Cursor{{Lane: 0}}, 10) // as a relay does
	for _, row := range page.Rows {
		fmt.Println(row.Seq, row.Event.Type)
	}
	fmt.Println(err)
	// Output:
	// <nil>
	// 1 OrderPlaced
	// 2 OrderPaid
	// <nil>
}
