package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
)

// neverSent are calls that fail before the server has seen their statement or
// the events that are buffered in front of it.
func neverSent() map[string]func(ctx context.Context, tx pgx.Tx, business string) error {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	insert := func(business string) string { return `INSERT INTO ` + business + ` VALUES ('lost')` }
	return map[string]func(ctx context.Context, tx pgx.Tx, business string) error{
		"Exec": func(_ context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(over, insert(business))
			return err
		},
		"several statements": func(_ context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(over, insert(business)+`; `+insert(business))
			return err
		},
		"Query": func(_ context.Context, tx pgx.Tx, _ string) error {
			rows, err := tx.Query(over, `SELECT 1`)
			rows.Close()
			return errors.Join(err, rows.Err())
		},
		"QueryRow": func(_ context.Context, tx pgx.Tx, _ string) error {
			var n int
			return tx.QueryRow(over, `SELECT 1`).Scan(&n)
		},
		"SendBatch": func(_ context.Context, tx pgx.Tx, business string) error {
			b := &pgx.Batch{}
			b.Queue(insert(business))
			return tx.SendBatch(over, b).Close()
		},
		"CopyFrom": func(_ context.Context, tx pgx.Tx, business string) error {
			schema := business[1 : len(business)-len(`".business`)]
			_, err := tx.CopyFrom(over, pgx.Identifier{schema, "business"}, []string{"note"}, pgx.CopyFromRows([][]any{{"lost"}}))
			return err
		},
		"Begin": func(_ context.Context, tx pgx.Tx, _ string) error {
			_, err := tx.Begin(over)
			return err
		},
		"Prepare": func(_ context.Context, tx pgx.Tx, _ string) error {
			_, err := tx.Prepare(over, "never", `SELECT 1`)
			return err
		},
		"an argument that has no encoding": func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, make(chan int))
			return err
		},
		"a table that is not there": func(ctx context.Context, tx pgx.Tx, business string) error {
			_, err := tx.Exec(ctx, `INSERT INTO `+business+`_not VALUES (1)`)
			return err
		},
		"a batch with a table that is not there": func(ctx context.Context, tx pgx.Tx, business string) error {
			b := &pgx.Batch{}
			b.Queue(insert(business))
			b.Queue(`INSERT INTO ` + business + `_not VALUES (1)`)
			return tx.SendBatch(ctx, b).Close()
		},
		"the commit of a savepoint": func(ctx context.Context, tx pgx.Tx, _ string) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return inner.Commit(over)
		},
	}
}

// goesBack are rollbacks to savepoints that are unrelated to the events in
// front of them.
func goesBack() map[string]func(ctx context.Context, tx pgx.Tx, business string) error {
	return map[string]func(ctx context.Context, tx pgx.Tx, business string) error{
		"nothing": func(context.Context, pgx.Tx, string) error { return nil },
		"a savepoint": func(ctx context.Context, tx pgx.Tx, _ string) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return inner.Rollback(ctx)
		},
		"a savepoint in SQL": func(ctx context.Context, tx pgx.Tx, _ string) error {
			if _, err := tx.Exec(ctx, `SAVEPOINT s`); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SELECT 1 / $1::int`, 0); err == nil {
				return errors.New("a division by zero went well")
			}
			_, err := tx.Exec(ctx, `ROLLBACK TO s`)
			return err
		},
	}
}

// An event exists if its transaction committed. A statement that never reaches
// the server does not discard the events that are buffered in front of it,
// regardless of later rollbacks.
func TestStatementThatIsNeverSent(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		box, rec, business := boxOf(t, pool)
		empty := func() {
			schema := business[:len(business)-len(".business")]
			if _, err := pool.Exec(t.Context(), `TRUNCATE `+schema+`.waybill_outbox, `+business); err != nil {
				t.Fatal(err)
			}
			rec.Reset()
		}
		for what, fail := range neverSent() {
			for how, goBack := range goesBack() {
				for when, begun := range map[string]bool{"first": false, "later": true} {
					t.Run(mode.String()+", "+what+", then "+how+", written "+when, func(t *testing.T) {
						empty()
						err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
							if begun {
								if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
									return err
								}
							}
							if err := box.Write(ctx, tx, event("A")); err != nil {
								return err
							}
							if err := fail(ctx, tx, business); err == nil {
								t.Error("it did not fail")
							}
							if err := goBack(ctx, tx, business); err != nil {
								return err
							}
							_, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
							return err
						})
						var notes []string
						rows, qerr := pool.Query(t.Context(), `SELECT note FROM `+business)
						if qerr == nil {
							notes, qerr = pgx.CollectRows(rows, pgx.RowTo[string])
						}
						if qerr != nil {
							t.Fatal(qerr)
						}
						evs := stored(t, pool, business)
						committed := err == nil && slices.Equal(notes, []string{"x"}) && slices.Equal(evs, []string{"A"}) && len(rec.Events()) == 1
						rolledBack := err != nil && len(notes) == 0 && len(evs) == 0 && len(rec.Events()) == 0
						if !committed && !rolledBack {
							t.Errorf("InTx returned %v; business rows %q, events %q, reported %d", err, notes, evs, len(rec.Events()))
						}
					})
				}
			}
		}
	}
}

// A rollback to a savepoint that never reaches the server rolls nothing back:
// the changes after the savepoint stay, including the events.
func TestRollbackThatIsNeverSent(t *testing.T) {
	pool := openPool(t, nil)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, back := range map[string]func(tx pgx.Tx) error{
		"Rollback": func(tx pgx.Tx) error { return tx.Rollback(over) },
		"in SQL":   func(tx pgx.Tx) error { _, err := tx.Exec(over, `ROLLBACK TO SAVEPOINT waybill_1`); return err },
	} {
		t.Run(name, func(t *testing.T) {
			box, rec, business := boxOf(t, pool)
			err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				inner, err := tx.Begin(ctx)
				if err != nil {
					return err
				}
				if _, err := inner.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x"); err != nil {
					return err
				}
				if err := box.Write(ctx, inner, event("A")); err != nil {
					return err
				}
				if err := back(inner); err == nil {
					t.Error("a rollback with a context that has ended went well")
				}
				return box.Write(ctx, tx, event("B"))
			})
			if err != nil {
				t.Fatal(err)
			}
			want(t, stored(t, pool, business), "A", "B")
			if evs := rec.Events(); len(evs) != 2 {
				t.Errorf("%d events were reported as committed, want 2", len(evs))
			}
			var n int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM `+business).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d business rows, %v; want 1", n, err)
			}
		})
	}
}

// Rows that are not read to their end keep the connection busy. An event that
// is written then is not lost silently.
func TestRowsThatAreNotRead(t *testing.T) {
	pool := openPool(t, nil)
	box, _, business := boxOf(t, pool)
	err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := box.Write(ctx, tx, event("A")); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT g FROM generate_series(1, 100000) AS g`)
		if err != nil {
			return err
		}
		rows.Next()
		if err := box.Write(ctx, tx, event("B")); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x"); err == nil {
			t.Error("a statement went out while the connection was busy")
		}
		rows.Close()
		_, err = tx.Exec(ctx, `INSERT INTO `+business+` VALUES ($1)`, "x")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, stored(t, pool, business), "A", "B")
	// The same after a rollback to a savepoint whose result has not been read:
	// the connection still reports that the transaction failed.
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SAVEPOINT s`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT 1 / $1::int`, 0); err == nil {
			t.Error("a division by zero went well")
		}
		b := &pgx.Batch{}
		b.Queue(`ROLLBACK TO s`)
		b.Queue(`ROLLBACK TO s`)
		results := tx.SendBatch(ctx, b)
		if _, err := results.Exec(); err != nil {
			return err
		}
		if err := box.Write(ctx, tx, event("D")); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT 1`); err == nil {
			t.Error("a statement went out while the connection was busy")
		}
		return results.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, stored(t, pool, business), "A", "B", "D")
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Query(ctx, `SELECT g FROM generate_series(1, 100000) AS g`); err != nil { //nolint:sqlclosecheck // left open on purpose
			return err
		}
		return box.Write(ctx, tx, event("C"))
	})
	if got := stored(t, pool, business); (err == nil) != slices.Contains(got, "C") || errors.Is(err, waybill.ErrUncertain) && slices.Contains(got, "C") {
		t.Errorf("InTx returned %v, and the outbox has %q", err, got)
	}
}

// Conn and LargeObjects expose the connection, send the buffered events first,
// and cannot return an error. If sending fails, the transaction is not
// committed without the events, regardless of what the caller does with the
// connection.
func TestConnectionBehindAFailedFlush(t *testing.T) {
	pool := openPool(t, nil)
	insert := func(business string) string { return `INSERT INTO ` + business + ` VALUES ('x')` }
	give := map[string]func(tx pgx.Tx) *pgx.Conn{
		"Conn": func(tx pgx.Tx) *pgx.Conn { return tx.Conn() },
		"LargeObjects": func(tx pgx.Tx) *pgx.Conn {
			objects := tx.LargeObjects()
			func() { // panics without a transaction of pgx behind it
				defer func() { _ = recover() }()
				_, _ = objects.Create(context.Background(), 0)
			}()
			return tx.Conn()
		},
	}
	type broken struct {
		// before runs in the transaction, in front of the event, and returns a
		// function that ends it; between runs after the event.
		before  func(ctx context.Context, tx pgx.Tx) (func(), error)
		between func(cancel func())
		ev      func(there waybill.ID) waybill.Event
	}
	nothing := func(context.Context, pgx.Tx) (func(), error) { return func() {}, nil }
	plain := func(waybill.ID) waybill.Event { return event("A") }
	for what, b := range map[string]broken{
		"the server refuses the event": {
			nothing, func(func()) {},
			func(there waybill.ID) waybill.Event { ev := event("A"); ev.ID = there; return ev },
		},
		"the context has ended": {nothing, func(cancel func()) { cancel() }, plain},
		"the connection is busy": {func(ctx context.Context, tx pgx.Tx) (func(), error) {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 10)`) //nolint:sqlclosecheck // the caller closes them
			return rows.Close, err
		}, func(func()) {}, plain},
	} {
		for how, after := range map[string][]string{
			"nothing":     {},
			"a savepoint": {`SAVEPOINT s`, `ROLLBACK TO s`},
		} {
			for giver, conn := range give {
				t.Run(what+", "+giver+", then "+how, func(t *testing.T) {
					box, rec, business := boxOf(t, pool)
					there := event("there")
					there.ID = waybill.NewID()
					if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, there) }); err != nil {
						t.Fatal(err)
					}
					rec.Reset()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					err := box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
						end, err := b.before(ctx, tx)
						if err != nil {
							return err
						}
						if err := box.Write(ctx, tx, b.ev(there.ID)); err != nil {
							return err
						}
						b.between(cancel)
						c := conn(tx)
						end()
						for _, statement := range append(after, insert(business)) {
							_, _ = c.Exec(t.Context(), statement)
						}
						return nil
					})
					evs := stored(t, pool, business)[1:]
					var notes int
					if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM `+business).Scan(&notes); err != nil {
						t.Fatal(err)
					}
					if err == nil || notes != 0 || len(evs) != 0 || len(rec.Events()) != 0 {
						t.Errorf("InTx returned %v; %d business rows, events %q, reported %d", err, notes, evs, len(rec.Events()))
					}
				})
			}
		}
	}
}
