package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
)

// awaitLockWait returns when a statement that names the schema waits for a
// lock, or done is not empty.
func awaitLockWait[A any](t *testing.T, pool *pgxpool.Pool, schema string, done chan A) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for waits := false; !waits && len(done) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the statement neither waits nor ends")
		}
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%')`, schema).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A write takes its dedup keys in sorted order. While the write waits for the
// first key, it holds none of the others, so two writes cannot deadlock.
func TestKeysAreTakenInOrder(t *testing.T) {
	pool := openPool(t, nil)
	box, _, business := boxOf(t, pool)
	schema := business[1 : len(business)-len(`".business`)]
	write := func(ctx context.Context, keys ...string) (commit func() error, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10s'`); err != nil {
			return nil, err
		}
		var evs []waybill.Event
		for _, key := range keys {
			ev := event("A")
			ev.DedupKey = key
			evs = append(evs, ev)
		}
		return func() error { return tx.Commit(ctx) }, box.Write(ctx, tx, evs...)
	}
	commitA, err := write(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		commit, err := write(t.Context(), "b", "a") // waits for a
		if err == nil {
			err = commit()
		}
		done <- err
	}()
	awaitLockWait(t, pool, schema, done)
	commitB, err := write(t.Context(), "b") // no transaction holds b yet
	if err != nil {
		t.Errorf("the waiting write holds a later key: %v", err)
	} else if err := commitB(); err != nil {
		t.Error(err)
	}
	if err := commitA(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
