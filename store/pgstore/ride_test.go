package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/store/pgstore"
)

// boxOf returns an outbox over fresh tables, a recorder of its commits, and the
// name of a business table.
func boxOf(t testing.TB, pool *pgxpool.Pool) (*outbox.Outbox[pgx.Tx], *outboxtest.Recorder, string) {
	t.Helper()
	// Wake-ups would be counted.
	db, schema := openWith(t, pool, pgstore.Config{NotifyInterval: -1})
	var rec outboxtest.Recorder
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{rec.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	return box, &rec, `"` + schema + `".business`
}

func event(name string) waybill.Event {
	return waybill.Event{Type: name, AggregateID: "a", Payload: []byte(`{}`)}
}

// stored returns the types of the committed events in order.
func stored(t testing.TB, pool *pgxpool.Pool, business string) []string {
	t.Helper()
	schema := business[:len(business)-len(".business")]
	rows, err := pool.Query(t.Context(), `SELECT type FROM `+schema+`.waybill_outbox ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A written event costs no round trip of its own, regardless of its place in
// the transaction. Neither does the BEGIN.
func TestRoundTrips(t *testing.T) {
	insert := func(ctx context.Context, tx pgx.Tx, business string) error {
		_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
		return err
	}
	for _, tc := range []struct {
		name  string
		trips int64
		fn    func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error
	}{
		{"nothing written", 2, func(ctx context.Context, _ *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			return insert(ctx, tx, business)
		}},
		{"written last", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			return errors.Join(insert(ctx, tx, business), box.Write(ctx, tx, event("A")))
		}},
		{"written first", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			return errors.Join(box.Write(ctx, tx, event("A")), insert(ctx, tx, business))
		}},
		{"several writes", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			return errors.Join(insert(ctx, tx, business), box.Write(ctx, tx, event("A")), box.Write(ctx, tx, event("B"), event("C")))
		}},
		{"around a statement", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			return errors.Join(box.Write(ctx, tx, event("A")), insert(ctx, tx, business), box.Write(ctx, tx, event("B")))
		}},
		{"with a dedup key", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			ev := event("A")
			ev.DedupKey = waybill.NewID().String()
			return errors.Join(insert(ctx, tx, business), box.Write(ctx, tx, ev))
		}},
		{"before a query", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			if err := box.Write(ctx, tx, event("A")); err != nil {
				return err
			}
			var n int
			return tx.QueryRow(ctx, `SELECT count(*) FROM `+business+` WHERE note <> $1`, "").Scan(&n)
		}},
		{"before a batch", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, business string) error {
			if err := box.Write(ctx, tx, event("A")); err != nil {
				return err
			}
			b := &pgx.Batch{}
			b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "x")
			b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "y")
			return tx.SendBatch(ctx, b).Close()
		}},
		{"only written", 2, func(ctx context.Context, box *outbox.Outbox[pgx.Tx], tx pgx.Tx, _ string) error {
			return box.Write(ctx, tx, event("A"))
		}},
		{"nothing at all", 0, func(context.Context, *outbox.Outbox[pgx.Tx], pgx.Tx, string) error { return nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool, w := openWire(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			box, _, business := boxOf(t, pool)
			run := func() int64 {
				before := w.sent.Load()
				err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return tc.fn(ctx, box, tx, business) })
				if err != nil {
					t.Fatal(err)
				}
				return w.sent.Load() - before
			}
			run() // prepares the statements
			if got := run(); got != tc.trips {
				t.Errorf("%d round trips, want %d: BEGIN with the first statement, the events with the next or with the COMMIT", got, tc.trips)
			}
		})
	}
}

// BEGIN is sent with the first round trip of any kind: everything in the
// function is in the transaction.
func TestBeginComesFirst(t *testing.T) {
	pool := openPool(t, nil)
	errNo := errors.New("no")
	for name, first := range map[string]func(ctx context.Context, tx pgx.Tx, business string) error{
		"exec": func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return err
		},
		"several statements": func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ('x'); INSERT INTO `+business+` VALUES ('y')`)
			return err
		},
		"query row": func(ctx context.Context, tx pgx.Tx, business string) error {
			var note string
			return tx.QueryRow(ctx, `INSERT INTO `+business+` VALUES ($1) RETURNING note`, "x").Scan(&note)
		},
		"batch": func(ctx context.Context, tx pgx.Tx, business string) error {
			b := &pgx.Batch{}
			b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "x")
			return tx.SendBatch(ctx, b).Close()
		},
		"copy": func(ctx context.Context, tx pgx.Tx, business string) error {
			schema := business[1 : len(business)-len(`".business`)]
			_, err := tx.CopyFrom(ctx, pgx.Identifier{schema, "business"}, []string{"note"}, pgx.CopyFromRows([][]any{{"x"}}))
			return err
		},
		"the connection itself": func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Conn().Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return err
		},
		"a savepoint": func(ctx context.Context, tx pgx.Tx, business string) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = inner.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return errors.Join(err, inner.Commit(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			box, _, business := boxOf(t, pool)
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if err := first(ctx, tx, business); err != nil {
					t.Error(err)
				}
				return errNo
			})
			if !errors.Is(err, errNo) {
				t.Errorf("InTx: %v", err)
			}
			var n int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM `+business).Scan(&n); err != nil || n != 0 {
				t.Errorf("%d rows were committed, %v; want none: the function failed", n, err)
			}
		})
	}
	t.Run("options", func(t *testing.T) {
		box, _, _ := boxOf(t, pool)
		err := box.InTxWith(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
			var level, readOnly string
			if err := tx.QueryRow(ctx, `SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')`).Scan(&level, &readOnly); err != nil {
				return err
			}
			if level != "serializable" || readOnly != "on" {
				t.Errorf("isolation %s, read only %s", level, readOnly)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// An event keeps its place in the transaction, regardless of what follows it.
func TestPlaces(t *testing.T) {
	pool := openPool(t, nil)
	for _, tc := range []struct {
		name string
		next func(ctx context.Context, tx pgx.Tx, business string) error
	}{
		{"exec", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return err
		}},
		{"exec without arguments", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ('x');`)
			return err
		}},
		{"several statements", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ('x'); INSERT INTO `+business+` VALUES ('y')`)
			return err
		}},
		{"exec in another mode", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, pgx.QueryExecModeSimpleProtocol, "x")
			return err
		}},
		{"named arguments", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES (@note)`, pgx.NamedArgs{"note": "x"})
			return err
		}},
		{"query", func(ctx context.Context, tx pgx.Tx, business string) error {
			rows, err := tx.Query(ctx, `INSERT INTO `+business+` VALUES ($1) RETURNING note`, "x")
			if err != nil {
				return err
			}
			notes, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err == nil && !slices.Equal(notes, []string{"x"}) {
				err = fmt.Errorf("got %q", notes)
			}
			return err
		}},
		{"query row", func(ctx context.Context, tx pgx.Tx, business string) error {
			var note string
			return tx.QueryRow(ctx, `INSERT INTO `+business+` VALUES ($1) RETURNING note`, "x").Scan(&note)
		}},
		{"copy", func(ctx context.Context, tx pgx.Tx, business string) error {
			schema := business[1 : len(business)-len(`".business`)]
			_, err := tx.CopyFrom(ctx, pgx.Identifier{schema, "business"}, []string{"note"}, pgx.CopyFromRows([][]any{{"x"}}))
			return err
		}},
		{"batch", func(ctx context.Context, tx pgx.Tx, business string) error {
			b := &pgx.Batch{}
			b.Queue(`INSERT INTO `+business+` VALUES ($1)`, "x")
			return tx.SendBatch(ctx, b).Close()
		}},
		{"the connection itself", func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Conn().Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return err
		}},
		{"a large object", func(ctx context.Context, tx pgx.Tx, business string) error {
			objects := tx.LargeObjects()
			oid, err := objects.Create(ctx, 0)
			if err != nil {
				return err
			}
			obj, err := objects.Open(ctx, oid, pgx.LargeObjectModeWrite)
			if err != nil {
				return err
			}
			if _, err = io.WriteString(obj, "x"); err != nil {
				return err
			}
			if err := objects.Unlink(ctx, oid); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
			return err
		}},
	} {
		// If begun is true, only the events are buffered, not the BEGIN.
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, begun %v", tc.name, begun), func(t *testing.T) {
				box, rec, business := boxOf(t, pool)
				// A trigger records how many events existed when the statement
				// ran.
				schema := business[:len(business)-len(".business")]
				if _, err := pool.Exec(t.Context(), `CREATE FUNCTION `+schema+`.seen() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN NEW.note := NEW.note || (SELECT count(*) FROM `+schema+`.waybill_outbox); RETURN NEW; END $$;
				ALTER TABLE `+business+` ADD seen int;
				CREATE FUNCTION `+schema+`.count_seen() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN NEW.seen := (SELECT count(*) FROM `+schema+`.waybill_outbox); RETURN NEW; END $$;
				CREATE TRIGGER seen BEFORE INSERT ON `+business+` FOR EACH ROW EXECUTE FUNCTION `+schema+`.count_seen()`); err != nil {
					t.Fatal(err)
				}
				err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					if begun {
						if _, err := tx.Exec(ctx, `SELECT $1::int`, 1); err != nil {
							return err
						}
					}
					return errors.Join(box.Write(ctx, tx, event("A")), tc.next(ctx, tx, business), box.Write(ctx, tx, event("B")))
				})
				if err != nil {
					t.Fatal(err)
				}
				want(t, stored(t, pool, business), "A", "B")
				if len(rec.Events()) != 2 {
					t.Errorf("%d events were reported as committed, want 2", len(rec.Events()))
				}
				var seen int
				if err := pool.QueryRow(t.Context(), `SELECT max(seen) FROM `+business).Scan(&seen); err != nil {
					t.Fatal(err)
				}
				if seen != 1 {
					t.Errorf("the statement between the events saw %d of them, want 1", seen)
				}
			})
		}
	}
}

// The caller cannot end the transaction through the handle that InTx passes
// out.
func TestHandleIsGuarded(t *testing.T) {
	pool := openPool(t, nil)
	for name, end := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"Rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"commit":   func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, " commit"); return err },
		"END":      func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "END;"); return err },
		"rollback": func(ctx context.Context, tx pgx.Tx) error {
			var nothing int
			return tx.QueryRow(ctx, "ROLLBACK").Scan(&nothing)
		},
		"abort": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "abort work"); return err },
		"batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("commit")
			return tx.SendBatch(ctx, b).Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			box, _, business := boxOf(t, pool)
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if err := box.Write(ctx, tx, event("A")); err != nil {
					return err
				}
				if err := end(ctx, tx); !errors.Is(err, waybill.ErrTxOwned) {
					t.Errorf("ending it inside: %v, want ErrTxOwned", err)
				}
				return box.Write(ctx, tx, event("B"))
			})
			if err != nil {
				t.Fatal(err)
			}
			want(t, stored(t, pool, business), "A", "B")
		})
	}
	t.Run("through the connection", func(t *testing.T) {
		box, _, business := boxOf(t, pool)
		err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if err := box.Write(ctx, tx, event("A")); err != nil {
				return err
			}
			_, err := tx.Conn().Exec(ctx, "commit")
			return err
		})
		if !errors.Is(err, waybill.ErrTxOwned) || !errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("got %v, want an uncertain ErrTxOwned", err)
		}
		want(t, stored(t, pool, business), "A") // nothing is lost
	})
	t.Run("after the end", func(t *testing.T) {
		box, _, business := boxOf(t, pool)
		var leaked pgx.Tx
		if err := box.InTx(t.Context(), func(_ context.Context, tx pgx.Tx) error { leaked = tx; return nil }); err != nil {
			t.Fatal(err)
		}
		if err := box.Write(t.Context(), leaked, event("A")); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("writing: %v, want ErrTxDone", err)
		}
		if _, err := leaked.Exec(t.Context(), `INSERT INTO `+business+` VALUES ('x')`); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a statement: %v, want pgx.ErrTxClosed", err)
		}
		want(t, stored(t, pool, business))
	})
}

// A statement that fails after buffered events rolls them back only as far as
// the database does.
func TestFailureBehindWaitingEvents(t *testing.T) {
	pool := openPool(t, nil)
	t.Run("swallowed", func(t *testing.T) {
		box, rec, business := boxOf(t, pool)
		err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if err := box.Write(ctx, tx, event("A")); err != nil {
				return err
			}
			_, _ = tx.Exec(ctx, `SELECT 1 / $1::int`, 0)
			return nil
		})
		if !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("got %v, want pgx.ErrTxCommitRollback", err)
		}
		want(t, stored(t, pool, business))
		if len(rec.Events()) != 0 {
			t.Errorf("%d events were reported as committed", len(rec.Events()))
		}
	})
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run("arguments that cannot be sent, "+mode.String(), func(t *testing.T) {
			pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			box, _, business := boxOf(t, pool)
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if err := box.Write(ctx, tx, event("A")); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, make(chan int)); err == nil {
					t.Error("a channel was sent as a text")
				}
				return nil
			})
			// The client does not know whether the event had reached the
			// server: committing without the event would lose it.
			if stored := stored(t, pool, business); err == nil && !slices.Equal(stored, []string{"A"}) || err != nil && len(stored) > 0 {
				t.Errorf("InTx returned %v, and the outbox has %q", err, stored)
			}
		})
	}
	t.Run("in a savepoint", func(t *testing.T) {
		box, rec, business := boxOf(t, pool)
		err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if err := box.Write(ctx, tx, event("A")); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := box.Write(ctx, inner, event("B")); err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, `SELECT 1 / $1::int`, 0); err == nil {
				t.Error("a division by zero went well")
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			return box.Write(ctx, tx, event("C"))
		})
		if err != nil {
			t.Fatal(err)
		}
		want(t, stored(t, pool, business), "A", "C")
		if evs := rec.Events(); len(evs) != 2 || evs[0].Type != "A" || evs[1].Type != "C" {
			t.Errorf("reported as committed: %v", evs)
		}
	})
	t.Run("a duplicate id at the commit", func(t *testing.T) {
		box, rec, business := boxOf(t, pool)
		ev := event("A")
		ev.ID = waybill.NewID()
		for i := range 2 {
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x"); err != nil {
					return err
				}
				return box.Write(ctx, tx, ev)
			})
			if (err != nil) != (i == 1) || errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("write %d: %v", i+1, err)
			}
		}
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM `+business).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d business rows, %v; want 1: the second transaction must be rolled back whole", n, err)
		}
		if len(rec.Events()) != 1 {
			t.Errorf("%d events were reported as committed, want 1", len(rec.Events()))
		}
	})
}

// A hook that writes while the events are sent with the COMMIT gets an error:
// its event would never be sent.
func TestWriteDuringTheCommit(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	var box *outbox.Outbox[pgx.Tx]
	var late error
	hook := outbox.Hook{AfterWrite: func(ctx context.Context, info outbox.AfterWriteInfo) {
		if info.Events[0].Type == "A" {
			late = box.Emit(ctx, event("B"))
		}
	}}
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{hook}})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, event("A")) })
	if err != nil {
		t.Fatal(err)
	}
	if got := stored(t, pool, `"`+schema+`".business`); late == nil && !slices.Equal(got, []string{"A", "B"}) || late != nil && !slices.Equal(got, []string{"A"}) {
		t.Errorf("the late write returned %v, and the outbox has %q", late, got)
	}
	if !errors.Is(late, waybill.ErrTxDone) {
		t.Errorf("the late write: %v, want ErrTxDone", late)
	}
}

func TestWithoutTables(t *testing.T) {
	pool := openPool(t, nil)
	db, err := pgstore.New(pool, pgstore.Config{Schema: schemaOf(t, pool)})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, event("A")) })
	if err == nil || !containsAll(err.Error(), "tables are missing", "Migrate", "MigrationSQL") {
		t.Errorf("got %v, want a hint to Migrate", err)
	}
}
