package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// forgetful is a store that fails to compute causes a few times.
type forgetful struct {
	driver.Complete[*memstore.Tx]
	driver.Causes
	asked, failing atomic.Int32
}

func (f *forgetful) NoteCauses(ctx context.Context, limit int) (int, error) {
	f.asked.Add(1)
	if f.failing.Add(-1) >= 0 {
		return 0, errRefused
	}
	return f.Causes.NoteCauses(ctx, limit)
}

// causesOf returns the number of dead letters of each cause, of the outbox or
// of a destination; "" stands for those without one.
func causesOf(f *fixture, rows any) map[string]int64 {
	f.Helper()
	counts, err := rows.(driver.Causes).CountCauses(f.Context(), 10)
	if err != nil {
		f.Fatal(err)
	}
	out := make(map[string]int64)
	for _, c := range counts {
		out[c.ID] = c.Letters
	}
	return out
}

// TestCausesOfDeadLetters: a relay computes the causes of dead letters ten
// seconds after the first of them died, tries again after a failure, and asks
// for none without dead letters.
func TestCausesOfDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		db := &forgetful{Complete: testroles.Complete(f.db), Causes: f.db.Driver().OutboxAdmin.(driver.Causes)}
		n := 0
		stop := run(t, db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
			n++
			return waybill.Permanent(fmt.Errorf("unknown product %d", n))
		}), relay.Config{Logger: slog.New(slog.DiscardHandler)})
		defer stop()
		want := func(when string, want map[string]int64, asked int32) {
			t.Helper()
			if got := causesOf(f, f.db.Driver().OutboxAdmin); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
			if got := db.asked.Swap(0); got != asked {
				t.Errorf("%s: causes were computed %d times, want %d", when, got, asked)
			}
		}
		cause := driver.CauseOf("unknown product 1")
		pass(time.Minute)
		want("after the first purge", nil, 1)
		db.failing.Store(1)
		f.write(event("a", 1))
		pass(5 * time.Second)
		f.write(event("b", 2))
		pass(4 * time.Second)
		want("before ten seconds", map[string]int64{"": 2}, 0)
		pass(2 * time.Second)
		want("after a failure", map[string]int64{"": 2}, 1)
		pass(10 * time.Second)
		want("after two attempts", map[string]int64{cause: 2}, 1)
		pass(30 * time.Minute)
		want("without further dead letters", map[string]int64{cause: 2}, 1) // for the second letter
		f.write(event("c", 3))
		pass(11 * time.Second)
		want("after a third letter", map[string]int64{cause: 3}, 1)
	})
}

// TestCausesOfDeadLettersOfDestinations: the backlogs of destinations get
// theirs, too.
func TestCausesOfDeadLettersOfDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		stop := f.startTo(relay.Config{}, relay.Destination{Name: "a", Sink: (&collector{}).sink()},
			relay.Destination{Name: "b", Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error {
				return waybill.Permanent(errors.New("no such customer"))
			})})
		defer stop()
		pass(time.Minute)
		f.write(event("a", 1), event("b", 1))
		pass(9 * time.Second)
		if got := causesOf(f, f.backlog("b")); got[""] != 2 {
			t.Errorf("before ten seconds: %v", got)
		}
		pass(2 * time.Second)
		if got := causesOf(f, f.backlog("b")); got[driver.CauseOf("no such customer")] != 2 {
			t.Errorf("after ten seconds: %v", got)
		}
	})
}
