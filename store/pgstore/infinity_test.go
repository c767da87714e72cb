package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// Times that PostgreSQL has, and that Go or the text form of an event cannot
// represent.
var strangeTimes = []string{"infinity", "-infinity", "294276-12-31 23:59:59.999999Z", "4713-01-01 00:00:00Z BC", "12000-01-01Z", "0001-01-01 00:00:00Z"}

// reader is the part of a store that reads times.
type reader interface {
	driver.Reader
	driver.Inspector
}

// A plain-SQL producer writes times that an event cannot have. Every read
// returns such a row, with the nearest time, and all other rows.
func TestTimesThatEventsHaveNot(t *testing.T) {
	for name, mode := range map[string]pgx.QueryExecMode{
		"pgx": pgx.QueryExecModeCacheStatement, "pgx, simple": pgx.QueryExecModeSimpleProtocol, "database/sql": -1,
	} {
		pool := openPool(t, func(c *pgxpool.Config) {
			if mode >= 0 {
				c.ConnConfig.DefaultQueryExecMode = mode
			}
		})
		for _, strange := range strangeTimes {
			t.Run(name+", "+strange, func(t *testing.T) {
				s, schema := openWith(t, pool, pgstore.Config{Lanes: 1, NotifyInterval: -1})
				db := s.Driver().Relay.(reader)
				if mode < 0 {
					plain := stdlib.OpenDBFromPool(pool)
					t.Cleanup(func() { _ = plain.Close() })
					db = s.SQL(plain).Driver().Relay.(reader)
				}
				insert := fmt.Sprintf(`INSERT INTO %q.waybill_outbox (type, payload, occurred_at, created_at, available_at) VALUES`, schema)
				for _, row := range []string{
					` ('plain', '1', now(), now(), NULL)`,
					` ('strange', '1', '` + strange + `', '` + strange + `', '` + strange + `')`,
					` ('plain', '1', now(), now(), NULL)`,
				} {
					if _, err := pool.Exec(t.Context(), insert+row); err != nil {
						t.Fatal(err)
					}
				}
				page, err := db.Fetch(t.Context(), []driver.Cursor{{Lane: 0}}, 10)
				if err != nil || len(page.Rows) != 3 {
					t.Fatalf("%d ready rows, %v; want 3", len(page.Rows), err)
				}
				row := page.Rows[1]
				future := strange[0] != '-' && strange[0] != '0' && strange[0] != '4'
				if row.DueAt.After(page.Now) != future || row.Err != nil {
					t.Errorf("available at %s reads as %v, now is %v, and the row has %v", strange, row.DueAt, page.Now, row.Err)
				}
				for what, at := range map[string]time.Time{"occurred": row.Event.OccurredAt, "created": row.CreatedAt, "due": row.DueAt} {
					if _, err := at.MarshalJSON(); err != nil || at.Year() < 1000 || at.IsZero() {
						t.Errorf("%s at %s reads as %v, %v", what, strange, at, err)
					}
				}
				if _, err := db.Load(t.Context(), []store.Key{row.Key}); err != nil {
					t.Errorf("load: %v", err)
				}
				if stats, err := db.Stats(t.Context()); err != nil || stats.Ready != 3 {
					t.Errorf("stats: %d ready, %v", stats.Ready, err)
				}
				if _, err := pool.Exec(t.Context(), fmt.Sprintf(`INSERT INTO %[1]q.waybill_delayed
SELECT lane, seq, id, type, aggregate_type, aggregate_id, tenant_id, topic, routing_key, schema_id, schema_version, dedup_key, occurred_at, priority,
 correlation_id, causation_id, headers, content_type, payload, created_at, coalesce(available_at, now()) FROM %[1]q.waybill_outbox`, schema)); err != nil {
					t.Fatal(err)
				}
				due, err := db.Due(t.Context(), []int{0}, 10)
				want := 3
				if future {
					want = 2
				}
				if err != nil || len(due.Rows) != want || due.Next.IsZero() == future {
					t.Errorf("%d rows are due, the next at %v, %v; want %d", len(due.Rows), due.Next, err, want)
				}
				if listed, err := db.List(t.Context(), store.Delayed, store.Filter{}, 0, 10); err != nil || len(listed) != 3 {
					t.Errorf("%d rows are listed, %v; want 3", len(listed), err)
				}
			})
		}
	}
}

// A row with such a time does not stop other rows, and is delivered when it is
// due: immediately, or never.
func TestRelayPassesTimesThatEventsHaveNot(t *testing.T) {
	pool := openPool(t, nil)
	s, schema := openWith(t, pool, pgstore.Config{Lanes: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	r, err := relay.New(s, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		seen[d.Type]++
		if seen[d.Type] == 1 {
			return errors.New("fails once")
		}
		if len(seen) == 6 && seen["created"] > 1 && seen["old"] > 1 && seen["plain"] > 1 && seen["occurred"] > 1 && seen["past"] > 1 && seen["last"] > 1 {
			cancel()
		}
		return nil
	}), relay.Config{BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		`(type, payload, available_at) VALUES ('never', '1', 'infinity')`,
		`(type, payload, occurred_at) VALUES ('occurred', '1', 'infinity')`,
		`(type, payload, available_at) VALUES ('past', '1', '-infinity')`,
		`(type, payload, created_at) VALUES ('created', '1', 'infinity')`,
		`(type, payload, created_at) VALUES ('old', '1', '-infinity')`,
		`(type, payload) VALUES ('plain', '1')`,
	} {
		if _, err := pool.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.waybill_outbox %s`, schema, row)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	// The event that is never due does not block others. An operator defers it
	// to infinity.
	for {
		tag, err := pool.Exec(t.Context(), fmt.Sprintf(`UPDATE %q.waybill_delayed SET due_at = 'infinity' WHERE type = 'never'`, schema))
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 1 || ctx.Err() != nil {
			break
		}
	}
	if _, err := pool.Exec(t.Context(), fmt.Sprintf(`INSERT INTO %q.waybill_outbox (type, payload) VALUES ('last', '1')`, schema)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen["never"] != 0 {
		t.Error("an event that is available at infinity was delivered")
	}
	for _, typ := range []string{"occurred", "past", "created", "old", "plain", "last"} {
		if seen[typ] < 2 {
			t.Errorf("%s was tried %d times, want 2", typ, seen[typ])
		}
	}
}
