package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// strangeTimes are numbers that a plain-SQL producer may write for a time:
// years that an event cannot have, other units, and zero.
var strangeTimes = []int64{math.MaxInt64, math.MinInt64, 253_402_300_800_000_000, 253_402_300_799_999_999, -62_135_596_800_000_000, -1, 0, 1_800_000_000}

// A time that is not a number is rejected, because the tables are strict. The
// row is not inserted, and nothing else changes.
func TestTimesThatAreNoNumbers(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	for _, column := range []string{"occurred_at", "created_at", "available_at"} {
		for _, value := range []string{`'infinity'`, `'9999-12-31'`, `'tomorrow'`, `''`, `x'00'`, `1e300`, `0.5`} {
			_, err := db.DB().ExecContext(t.Context(), `INSERT INTO waybill_outbox (type, payload, `+column+`) VALUES ('strange', '1', `+value+`)`)
			if err == nil {
				t.Errorf("%s takes %s", column, value)
			}
		}
	}
	if rows := fetch(t, db.Driver().Relay); len(rows) != 0 {
		t.Errorf("%d rows are there", len(rows))
	}
}

// Every read returns a row with such a time, with the nearest time that an
// event can have, and all other rows.
func TestTimesThatEventsHaveNot(t *testing.T) {
	for _, strange := range strangeTimes {
		t.Run(fmt.Sprint(strange), func(t *testing.T) {
			db := open(t, sqlitestore.Config{})
			run(t, db, `INSERT INTO waybill_outbox (type, payload) VALUES ('plain', '1')`)
			run(t, db, `INSERT INTO waybill_outbox (type, payload, occurred_at, created_at, available_at) VALUES ('strange', '1', ?1, ?1, ?1)`, strange)
			run(t, db, `INSERT INTO waybill_outbox (type, payload) VALUES ('plain', '1')`)
			page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: 0}}, 10)
			if err != nil || len(page.Rows) != 3 {
				t.Fatalf("%d ready rows, %v; want 3", len(page.Rows), err)
			}
			row, future := page.Rows[1], strange > page.Now.UnixMicro()
			if row.DueAt.After(page.Now) != future || row.Err != nil {
				t.Errorf("it reads as %v, now is %v, and the row has %v", row.DueAt, page.Now, row.Err)
			}
			for what, at := range map[string]time.Time{"occurred": row.Event.OccurredAt, "created": row.CreatedAt, "due": row.DueAt} {
				// An event that is due immediately has no due time.
				if what == "due" && !future {
					continue
				}
				if _, err := at.MarshalJSON(); err != nil || at.Year() < 1000 || at.IsZero() {
					t.Errorf("%s reads as %v, %v", what, at, err)
				}
			}
			if _, err := db.Driver().Relay.Load(t.Context(), []store.Key{row.Key}); err != nil {
				t.Errorf("load: %v", err)
			}
			if stats, err := db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || stats.Ready != 3 {
				t.Errorf("stats: %+v, %v", stats, err)
			}
		})
	}
}

// A row with such a time stops no other row, and is listed where it waits.
func TestRelayPassesTimesThatEventsHaveNot(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	r, err := relay.New(db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[d.Type]++; seen[d.Type] == 1 {
			return errors.New("fails once")
		}
		return nil
	}), relay.Config{BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var never []string
	for i, strange := range strangeTimes {
		for _, column := range []string{"occurred_at", "created_at", "available_at"} {
			name := fmt.Sprint(column, i)
			run(t, db, `INSERT INTO waybill_outbox (type, payload, `+column+`) VALUES (?, '1', ?)`, name, strange)
			if column == "available_at" && strange > time.Now().UnixMicro() {
				never = append(never, name)
			}
		}
	}
	run(t, db, `INSERT INTO waybill_outbox (type, payload) VALUES ('last', '1')`)
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	want := 3*len(strangeTimes) + 1 - len(never)
	for all := 0; all < want && ctx.Err() == nil; <-time.After(2 * time.Millisecond) {
		all = 0
		mu.Lock()
		for _, n := range seen {
			if n > 1 {
				all++
			}
		}
		mu.Unlock()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != want {
		t.Errorf("%d kinds of events were delivered, want %d: %v", len(seen), want, seen)
	}
	for _, name := range never {
		if seen[name] > 0 {
			t.Errorf("%s was delivered", name)
		}
	}
	stats, err := ops.Stats(t.Context())
	if err != nil || int(stats.Scheduled) != len(never) || stats.Ready+stats.Failed != 0 {
		t.Errorf("%d are scheduled, %d ready, %d failed, %v; want %d, 0, 0", stats.Scheduled, stats.Ready, stats.Failed, err, len(never))
	}
	listed, err := db.Driver().OutboxAdmin.List(t.Context(), store.Delayed, store.Filter{}, 0, 100)
	if err != nil || len(listed) != len(never) {
		t.Fatalf("%d are listed, %v; want %d", len(listed), err, len(never))
	}
	for _, rec := range listed {
		if _, err := rec.DueAt.MarshalJSON(); err != nil {
			t.Errorf("%s: %v", rec.Event.Type, err)
		}
	}
}

// A dead letter that was written at such a time can be discarded, and later
// calls of Committed still get an answer.
func TestDiscardOfTimesThatEventsHaveNot(t *testing.T) {
	for _, strange := range strangeTimes {
		t.Run(fmt.Sprint(strange), func(t *testing.T) {
			db := open(t, sqlitestore.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dead := make(chan waybill.ID, 1)
			r, err := relay.New(db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
				dead <- d.ID
				return waybill.Permanent(errors.New("no"))
			}), relay.Config{})
			if err != nil {
				t.Fatal(err)
			}
			run(t, db, `INSERT INTO waybill_outbox (type, payload, created_at) VALUES ('strange', '1', ?)`, strange)
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			id := <-dead
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if gone, err := db.Driver().OutboxAdmin.Discard(t.Context(), []waybill.ID{id}); err != nil || len(gone) != 1 {
				t.Fatalf("Discard: %v, %v", gone, err)
			}
			known, err := db.Driver().Outbox.Committed(t.Context(), waybill.NewID())
			if known || err != nil && !errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("Committed of an event that never was: %v, %v", known, err)
			}
		})
	}
}
