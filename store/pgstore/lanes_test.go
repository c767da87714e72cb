package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// heard collects the entries that the writers of a store publish to its hub.
type heard struct {
	mu      sync.Mutex
	entries []driver.Entry
}

func listen(t *testing.T, hub *driver.Hub) *heard {
	t.Helper()
	h := &heard{}
	t.Cleanup(hub.Listen(func(c driver.Commit) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.entries = append(h.entries, c.Entries...)
	}))
	return h
}

func (h *heard) list() []driver.Entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]driver.Entry(nil), h.entries...)
}

// forget drops the entries from before the number of lanes changed: no relay
// listened then.
func (h *heard) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = nil
}

// lanesOf returns the lane of every pending row, by id, and the number of
// lanes.
func lanesOf(t *testing.T, pool *pgxpool.Pool, schema string) (rows map[string]int, lanes int) {
	t.Helper()
	rows = map[string]int{}
	found, err := pool.Query(t.Context(), `SELECT id::text, lane FROM "`+schema+`".waybill_outbox
UNION ALL SELECT id::text, lane FROM "`+schema+`".waybill_delayed`)
	if err != nil {
		t.Fatal(err)
	}
	var id string
	var lane int
	if _, err := pgx.ForEachRow(found, []any{&id, &lane}, func() error { rows[id] = lane; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM "`+schema+`".waybill_lane`).Scan(&lanes); err != nil {
		t.Fatal(err)
	}
	return rows, lanes
}

// checkLanes checks that every row is in the lane where a reader searches for
// its aggregate, and that every published entry has the lane of its row.
func checkLanes(t *testing.T, pool *pgxpool.Pool, schema string, evs []waybill.Event, published []driver.Entry) {
	t.Helper()
	rows, lanes := lanesOf(t, pool, schema)
	for _, ev := range evs {
		lane, there := rows[ev.ID.UUID()]
		switch {
		case !there:
			t.Errorf("%s has no row", ev.Type)
		case lane >= lanes:
			t.Errorf("%s is in lane %d of %d: no relay reads it", ev.Type, lane, lanes)
		case ev.Ordered():
			if want := driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, lanes); lane != want {
				t.Errorf("%s is in lane %d, its aggregate in %d of %d", ev.Type, lane, want, lanes)
			}
		}
	}
	for _, e := range published {
		if lane, there := rows[e.Event.ID.UUID()]; there && lane != e.Lane {
			t.Errorf("%s is in lane %d, and its writer published lane %d", e.Event.Type, lane, e.Lane)
		}
	}
}

// kinds are events that use the different statements of a write.
func kinds() map[string]func() []waybill.Event {
	several := func(n int, change func(*waybill.Event)) func() []waybill.Event {
		return func() []waybill.Event {
			var evs []waybill.Event
			for i := range n {
				ev := waybill.Event{ID: waybill.NewID(), Type: fmt.Sprint("E", i), AggregateType: "order", AggregateID: fmt.Sprint("a", i), TenantID: "t", Payload: []byte(`{}`)}
				change(&ev)
				evs = append(evs, ev)
			}
			return evs
		}
	}
	return map[string]func() []waybill.Event{
		"one":       several(1, func(*waybill.Event) {}),
		"many":      several(40, func(*waybill.Event) {}),
		"unordered": several(40, func(ev *waybill.Event) { ev.AggregateID, ev.AggregateType = "", "" }),
		"dedup":     several(40, func(ev *waybill.Event) { ev.DedupKey = ev.ID.String() }),
		"delayed":   several(40, func(ev *waybill.Event) { ev.Delay = time.Hour }),
	}
}

// The number of lanes changes while a service keeps writing with the old number
// in memory. Every event goes to its lane under the new number, and relays in
// the service's process are notified of that lane.
func TestLanesAreChangedUnderAWriter(t *testing.T) {
	pool := openPool(t, nil)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	for _, c := range []struct{ from, to int }{{32, 4}, {4, 32}, {32, 1}, {1, 32}} {
		for kind, events := range kinds() {
			name := fmt.Sprintf("%d to %d, %s", c.from, c.to, kind)
			// change returns a store that remembers the old number of lanes.
			change := func(t *testing.T) (*pgstore.Store, func(), string) {
				writer, schema := openWith(t, pool, pgstore.Config{Lanes: c.from, NotifyInterval: -1})
				operator, err := pgstore.New(pool, pgstore.Config{Schema: schema})
				if err != nil {
					t.Fatal(err)
				}
				return writer, func() {
					if err := operator.Driver().OutboxAdmin.SetLanes(context.Background(), c.to); err != nil {
						t.Error(err)
					}
				}, schema
			}
			t.Run(name+", pgx", func(t *testing.T) {
				writer, setLanes, schema := change(t)
				published := listen(t, writer.Driver().Outbox.Local())
				box, err := outbox.New(writer, outbox.Config{})
				if err != nil {
					t.Fatal(err)
				}
				evs := append(events(), events()...)
				if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs[0]) }); err != nil {
					t.Fatal(err)
				}
				setLanes()
				published.forget()
				// If begun is false, the write is the transaction's first
				// statement.
				for _, begun := range []bool{false, true} {
					more := events()
					err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
						if begun {
							if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
								return err
							}
						}
						return box.Write(ctx, tx, more...)
					})
					if err != nil {
						t.Fatal(err)
					}
					checkLanes(t, pool, schema, more, published.list())
				}
				// A transaction of the caller's own.
				tx, err := pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := box.Write(t.Context(), tx, evs[1:]...); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				checkLanes(t, pool, schema, evs, published.list())
				if kind != "delayed" && len(published.list()) == 0 {
					t.Error("the hub got no entries")
				}
			})
			t.Run(name+", database/sql", func(t *testing.T) {
				store, setLanes, schema := change(t)
				writer := store.SQL(db)
				published := listen(t, writer.Driver().Outbox.Local())
				box, err := outbox.New(writer, outbox.Config{})
				if err != nil {
					t.Fatal(err)
				}
				evs := events()
				first := waybill.Event{Type: "first", AggregateID: "a", Payload: []byte(`{}`)}
				if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, first) }); err != nil {
					t.Fatal(err)
				}
				setLanes()
				published.forget()
				if err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
					t.Fatal(err)
				}
				checkLanes(t, pool, schema, evs, published.list())
			})
		}
	}
	// The transaction's snapshot is older than the change: a table read in it
	// returns the old number.
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run("an open transaction, "+level.String(), func(t *testing.T) {
			writer, schema := openWith(t, pool, pgstore.Config{Lanes: 4, NotifyInterval: -1})
			operator, err := pgstore.New(pool, pgstore.Config{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			published := listen(t, writer.Driver().Outbox.Local())
			box, err := outbox.New(writer, outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var evs []waybill.Event
			for _, events := range kinds() {
				evs = append(evs, events()...)
			}
			err = box.InTxWith(t.Context(), &sql.TxOptions{Isolation: level}, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `SELECT count(*) FROM "`+schema+`".waybill_setting`); err != nil {
					return err
				}
				if err := operator.Driver().OutboxAdmin.SetLanes(ctx, 32); err != nil {
					return err
				}
				if err := box.Write(ctx, tx, evs...); err != nil {
					return err
				}
				// The statement sends the events.
				if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
					return err
				}
				return box.Write(ctx, tx, event("last"))
			})
			if err != nil {
				t.Fatal(err)
			}
			checkLanes(t, pool, schema, evs, published.list())
		})
	}
}

// The same with many concurrent writers: the change reaches each of them at
// another point.
func TestLanesAreChangedUnderManyWriters(t *testing.T) {
	pool := openPool(t, nil)
	operator, schema := openWith(t, pool, pgstore.Config{Lanes: 4, NotifyInterval: -1})
	writer, err := pgstore.New(pool, pgstore.Config{Schema: schema, NotifyInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(writer, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var evs []waybill.Event
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 6 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				var mine []waybill.Event
				for _, events := range kinds() {
					mine = append(mine, events()[0])
				}
				err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					return errors.Join(box.Write(ctx, tx, mine[:1+i%2]...), box.Write(ctx, tx, mine[1+i%2:]...))
				})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				evs = append(evs, mine...)
				mu.Unlock()
			}
		})
	}
	for _, n := range []int{32, 3, 1, 17, 4, 32} {
		mu.Lock()
		before := len(evs)
		mu.Unlock()
		if err := operator.Driver().OutboxAdmin.SetLanes(t.Context(), n); err != nil {
			t.Error(err)
		}
		// Wait until the writers have continued after the change.
		for deadline := time.Now().Add(time.Minute); ; {
			mu.Lock()
			now := len(evs)
			mu.Unlock()
			if now >= before+60 || t.Failed() || time.Now().After(deadline) {
				break
			}
			if err := pool.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	wg.Wait()
	checkLanes(t, pool, schema, evs, nil)
}
