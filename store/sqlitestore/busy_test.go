package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// deferred are the settings of a handle whose transactions begin without a
// lock, which is SQLite's own default. The busy timeout is long, but does not
// help.
const deferred = "_journal_mode=WAL&_busy_timeout=60000"

// TestDeferredUpgrade shows the hazard and that InTx does not have it: a
// transaction that reads first and then writes fails immediately if another
// transaction has written in between, regardless of the busy timeout.
func TestDeferredUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := over(t, path, deferred, sqlitestore.Config{})
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := newBox(t, db.Driver().Outbox)
	readThenWrite := func(ctx context.Context, tx *sql.Tx, between func()) error {
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM waybill_outbox`).Scan(&n); err != nil {
			return err
		}
		between()
		return box.Write(ctx, tx, placed(`"late"`))
	}

	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = readThenWrite(t.Context(), tx, func() { write(t, box, placed("1")) })
	if err == nil || !strings.Contains(err.Error(), "SQLITE_BUSY") && !strings.Contains(err.Error(), "locked") {
		t.Errorf("a deferred transaction that turns to writing: %v; does the hazard not exist any more?", err)
	}
	if waited := time.Since(start); waited > 30*time.Second {
		t.Errorf("it waited for %v", waited)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}

	done := make(chan error)
	err = box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return readThenWrite(ctx, tx, func() {
			// The same other writer now waits until this transaction is over.
			go func() {
				_, err := db.DB().ExecContext(t.Context(), `INSERT INTO waybill_outbox (type, payload) VALUES ('Other', '{}')`)
				done <- err
			}()
		})
	})
	if err != nil {
		t.Errorf("InTx: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the other writer: %v", err)
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// TestLockFromTheStart checks from another connection that InTx has the lock
// before its function runs a statement.
func TestLockFromTheStart(t *testing.T) {
	for _, settings := range []string{"_journal_mode=WAL", "_journal_mode=WAL&_txlock=deferred", "_journal_mode=WAL&_txlock=immediate"} {
		path := filepath.Join(t.TempDir(), "test.db")
		db := over(t, path, settings, sqlitestore.Config{})
		if _, err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		box := newBox(t, db.Driver().Outbox)
		lock := func(ctx context.Context) error {
			conn, err := db.DB().Conn(ctx)
			if err != nil {
				return err
			}
			defer shut(t, conn)
			if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
				return err
			}
			_, err = conn.ExecContext(ctx, "ROLLBACK")
			return err
		}
		err := box.InTx(t.Context(), func(ctx context.Context, _ *sql.Tx) error {
			if err := lock(ctx); err == nil {
				t.Errorf("%s: InTx does not have the write lock", settings)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", settings, err)
		}
		if err := lock(t.Context()); err != nil {
			t.Errorf("%s: the lock was not given back: %v", settings, err)
		}
	}
}

// TestLockDirtiesNothing runs transactions that do nothing: the write-ahead log
// must not grow.
func TestLockDirtiesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := over(t, path, deferred, sqlitestore.Config{})
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	frames := func() (n int) {
		var busy, moved int
		if err := db.DB().QueryRowContext(t.Context(), `PRAGMA wal_checkpoint(PASSIVE)`).Scan(&busy, &n, &moved); err != nil {
			t.Fatal(err)
		}
		return n
	}
	box := newBox(t, db.Driver().Outbox)
	before := frames()
	for range 3 {
		if err := box.InTx(t.Context(), func(context.Context, *sql.Tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if after := frames(); after > before {
		t.Errorf("the log grew from %d to %d frames", before, after)
	}
}

// TestWritersTakeTurns queues writers behind a transaction and checks the order
// in which they are served.
func TestWritersTakeTurns(t *testing.T) {
	db := open(t, sqlitestore.Config{BusyTimeout: time.Minute})
	box := newBox(t, db.Driver().Outbox)
	const n = 20
	var wg sync.WaitGroup
	err := box.InTx(t.Context(), func(context.Context, *sql.Tx) error {
		for i := range n {
			before := db.Waiting()
			wg.Go(func() {
				err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
					return box.Write(ctx, tx, placed(fmt.Sprint(i)))
				})
				if err != nil {
					t.Error(err)
				}
			})
			await(t, func() bool { return db.Waiting() > before })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, row := range fetch(t, db.Driver().Relay) {
		if string(row.Event.Payload) != fmt.Sprint(i) {
			t.Errorf("place %d is %s", i, row.Event.Payload)
		}
	}
}

// await waits for a condition.
func await(t testing.TB, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true")
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // between two looks at a condition
	}
}

// TestWaitingEnds cancels a waiting writer, and lets other writers time out: in
// the queue, and at the lock of a transaction that does not queue.
func TestWaitingEnds(t *testing.T) {
	db := open(t, sqlitestore.Config{BusyTimeout: 50 * time.Millisecond})
	box := newBox(t, db.Driver().Outbox)
	nothing := func(context.Context, *sql.Tx) error { return nil }
	cause := errors.New("the client has left")
	err := box.InTx(t.Context(), func(context.Context, *sql.Tx) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := box.InTx(ctx, nothing); !errors.Is(err, cause) {
			t.Errorf("a writer that was canceled: %v", err)
		}
		// Without the outer context, the call would wait for itself.
		err := box.InTx(t.Context(), nothing)
		if err == nil || !strings.Contains(err.Error(), "Config.BusyTimeout") {
			t.Errorf("a transaction that waits for itself: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// The transaction is immediate: it holds the lock without having queued.
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.InTx(t.Context(), nothing); err == nil || !strings.Contains(err.Error(), "Config.BusyTimeout") {
		t.Errorf("a writer behind a transaction that does not queue: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := box.InTx(ctx, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("a writer that was canceled behind it: %v", err)
	}
	if _, err := db.Driver().Outbox.Committed(t.Context(), waybill.NewID()); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Committed beside an open transaction: %v, want ErrUncertain", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := box.InTx(t.Context(), nothing); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if yes, err := db.Driver().Outbox.Committed(t.Context(), waybill.NewID()); yes || err != nil {
		t.Errorf("Committed is %v, %v", yes, err)
	}
}

// TestNoBusyTimeout: the store waits for a transaction of another handle
// although its connections have no busy timeout.
func TestNoBusyTimeout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := over(t, path, "_journal_mode=WAL", sqlitestore.Config{})
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := newBox(t, db.Driver().Outbox)
	conn, err := db.DB().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, conn)
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		done <- box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, placed("1")) })
	}()
	select {
	case err := <-done:
		t.Fatalf("InTx did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := conn.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestOneConnection uses a pool of one connection, which is common with SQLite:
// the store must not request a second connection while it holds the first.
func TestOneConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := over(t, path, deferred, sqlitestore.Config{})
	db.DB().SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := db.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	box := newBox(t, db.Driver().Outbox)
	keyed := placed("2")
	keyed.DedupKey, keyed.Delay = "k", time.Hour
	// The transaction begins before the store has used the file at all.
	tx, err := db.DB().BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Write(ctx, tx, placed("1"), keyed, keyed); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			return box.Write(ctx, tx, placed("1"), keyed, keyed)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if yes, err := db.Driver().Outbox.Committed(ctx, waybill.NewID()); yes || err != nil {
		t.Errorf("Committed is %v, %v", yes, err)
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 4 {
		t.Errorf("%d rows, want 4", n)
	}
}
