package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/pgstore"
)

func containsAll(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// resolve calls Committed until the answer is certain.
func resolve[T any](t *testing.T, box *outbox.Outbox[T], id waybill.ID) bool {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		committed, err := box.Committed(t.Context(), id)
		if err == nil {
			return committed
		}
		if !errors.Is(err, waybill.ErrUncertain) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A commit whose reply is lost is neither success nor failure, and Committed
// resolves it by the event's id.
func TestUncertainCommit(t *testing.T) {
	for _, tc := range []struct {
		name      string
		cut       int32
		committed bool
	}{
		{"the reply is lost", beforeReply, true},
		{"the request is lost", beforeSend, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool, w := openWire(t, nil)
			box, rec, business := boxOf(t, pool)
			// The first transaction prepares its statements in a round trip of
			// its own: run it before the connection is cut.
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ('x')`)
				return errors.Join(err, box.Write(ctx, tx, event("warm")))
			})
			if err != nil {
				t.Fatal(err)
			}
			rec.Reset()
			ev := event("A")
			ev.ID = waybill.NewID()
			err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ('x')`); err != nil {
					return err
				}
				if err := box.Write(ctx, tx, ev); err != nil {
					return err
				}
				w.cut.Store(tc.cut)
				return nil
			})
			checkUncertain(t, err, ev.ID)
			if len(rec.Events()) != 0 {
				t.Error("AfterCommit ran although the outcome is unknown")
			}
			if got := resolve(t, box, ev.ID); got != tc.committed {
				t.Errorf("Committed says %v, want %v", got, tc.committed)
			}
		})
	}
}

func TestUncertainCommitSQL(t *testing.T) {
	pool, w := openWire(t, nil)
	_, schema := openStore(t, pool)
	sqldb := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = sqldb.Close() })
	db, err := pgstore.NewSQL(sqldb, pgstore.Config{Schema: schema, NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev := event("A")
	ev.ID = waybill.NewID()
	err = box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := box.Write(ctx, tx, ev); err != nil {
			return err
		}
		w.cut.Store(beforeReply)
		return nil
	})
	checkUncertain(t, err, ev.ID)
	if !resolve(t, box, ev.ID) {
		t.Error("Committed says no, but the commit had reached the server")
	}
}

func checkUncertain(t *testing.T, err error, id waybill.ID) {
	t.Helper()
	var uncertain *outbox.UncertainError
	if !errors.As(err, &uncertain) || !errors.Is(err, waybill.ErrUncertain) {
		t.Fatalf("got %v, want an UncertainError", err)
	}
	if len(uncertain.Events) != 1 || uncertain.Events[0] != id {
		t.Errorf("it names the events %v, want %v", uncertain.Events, id)
	}
}

// While a transaction that may contain the event is open, "not found" does not
// mean "no".
func TestOpenTransaction(t *testing.T) {
	pool := openPool(t, nil)
	box, _, _ := boxOf(t, pool)
	ev := event("A")
	ev.ID = waybill.NewID()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
	if err := box.Write(t.Context(), tx, ev); err != nil {
		t.Fatal(err)
	}
	if _, err := box.Committed(t.Context(), ev.ID); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("while it is open: %v, want ErrUncertain", err)
	}
	// other began after the first call of Committed, so it does not delay the
	// answer.
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(context.Background()) //nolint:errcheck // always rolled back
	if _, err := other.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if resolve(t, box, ev.ID) {
		t.Error("it was rolled back, and Committed says yes")
	}
}

// If the server stops in the middle of a transaction, nothing is left behind,
// and the error says so.
func TestBackendKilled(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.MaxConns = 4 })
	box, _, business := boxOf(t, pool)
	err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := box.Write(ctx, tx, event("A")); err != nil {
			return err
		}
		var pid int
		if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, `SELECT pg_terminate_backend($1)`, pid)
		return err
	})
	if err == nil {
		t.Error("InTx went well without a server")
	}
	want(t, stored(t, pool, business))
}
