package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
)

// A batch that begins a transaction is rejected inside a transaction, as pgx
// rejects it: the transaction in its results could commit the transaction of
// InTx. The buffered events stay, and are sent in front of the next statement.
func TestBatchThatBegins(t *testing.T) {
	pool := openPool(t, nil)
	begin := func(business string) *pgx.Batch {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "batch")
		return b
	}
	for name, inner := range map[string]bool{"in the transaction": false, "in a savepoint": true} {
		for when, first := range map[string]bool{"before the first statement": true, "later": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				box, _, business := boxOf(t, pool)
				no := errors.New("no")
				run := func(end error) error {
					return box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
						if !first {
							if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
								return err
							}
						}
						if inner {
							var err error
							if tx, err = tx.Begin(ctx); err != nil {
								return err
							}
						}
						// Once with and once without a buffered event in front
						// of the batch.
						for range 2 {
							results := tx.SendBatch(ctx, begin(business))
							if begun := results.Tx(); begun == nil {
								t.Error("the results of a batch that begins have no transaction: pgx promises one, closed")
							} else if err := begun.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
								t.Errorf("committing the transaction of the batch: %v, want pgx.ErrTxClosed", err)
							}
							if err := results.Close(); err == nil {
								t.Error("a batch began a transaction inside another")
							}
							if err := box.Write(ctx, tx, event("A")); err != nil {
								return err
							}
						}
						if _, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x"); err != nil {
							return err
						}
						if inner && end == nil {
							return tx.Commit(ctx)
						}
						return end
					})
				}
				if err := run(no); !errors.Is(err, no) {
					t.Errorf("got %v, want the function's error", err)
				}
				want(t, stored(t, pool, business))
				if err := run(nil); err != nil {
					t.Fatal(err)
				}
				want(t, stored(t, pool, business), "A", "A")
				var notes []string
				rows, err := pool.Query(t.Context(), `SELECT note FROM `+business)
				if err == nil {
					notes, err = pgx.CollectRows(rows, pgx.RowTo[string])
				}
				if err != nil || !slices.Equal(notes, []string{"x"}) {
					t.Errorf("business rows %q, %v; want the rows that were sent after the rejected batch", notes, err)
				}
			})
		}
	}
	t.Run("after the end", func(t *testing.T) {
		box, _, business := boxOf(t, pool)
		var leaked pgx.Tx
		if err := box.InTx(t.Context(), func(_ context.Context, tx pgx.Tx) error { leaked = tx; return nil }); err != nil {
			t.Fatal(err)
		}
		results := leaked.SendBatch(t.Context(), begin(business))
		if err := results.Close(); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("got %v, want pgx.ErrTxClosed", err)
		}
		if results.Tx() == nil {
			t.Error("the results of a batch that begins have no transaction")
		}
	})
}

// Write accepts a transaction that a batch has begun.
func TestWriteInATransactionThatABatchBegan(t *testing.T) {
	pool := openPool(t, nil)
	for _, commit := range []bool{true, false} {
		box, _, business := boxOf(t, pool)
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "x")
		results := pool.SendBatch(t.Context(), b)
		tx := results.Tx()
		if err := results.Close(); err != nil {
			t.Fatal(err)
		}
		if err := box.Write(t.Context(), tx, event("A")); err != nil {
			t.Fatal(err)
		}
		if !commit {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			want(t, stored(t, pool, business))
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, stored(t, pool, business), "A")
		if err := box.Write(t.Context(), tx, event("B")); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("writing after its end: %v, want ErrTxDone", err)
		}
	}
}
