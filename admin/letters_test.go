package admin_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testaudit"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// letters returns an outbox with dead letters that died at different times with
// two errors, the first of each round, and the time between the rounds.
func letters(t *testing.T) (ops *admin.Outbox, refused, unknown [2]string, between time.Time) {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		if round == 1 {
			between = time.Now().Truncate(time.Microsecond).Add(time.Microsecond)
			for !time.Now().After(between) { // a microsecond
				continue
			}
		}
		refused[round] = testaudit.Bury(t, db, 3, "dial 10.0.0.1: connection refused")[0].String()
		unknown[round] = testaudit.Bury(t, db, 2, "customer 7 is unknown")[0].String()
	}
	if ops, err = admin.NewOutbox(db, admin.Config{BatchSize: 2}); err != nil {
		t.Fatal(err)
	}
	return ops, refused, unknown, between
}

// TestLettersByTimeAndError replays and discards the dead letters of a time and
// of an error, the oldest first.
func TestLettersByTimeAndError(t *testing.T) {
	ops, refused, unknown, between := letters(t)
	for _, c := range []struct {
		name  string
		f     store.Filter
		n     int64
		first string
	}{
		{"all", store.Filter{}, 10, refused[0]},
		{"since", store.Filter{Since: between}, 5, refused[1]},
		{"until", store.Filter{Until: between}, 5, refused[0]},
		{"error", store.Filter{Error: "is unknown"}, 4, unknown[0]},
		{"error since", store.Filter{Error: "is unknown", Since: between}, 2, unknown[1]},
		{"error in other letters", store.Filter{Error: "Unknown"}, 0, ""},
	} {
		page, err := ops.List(t.Context(), store.Dead, c.f, 0, 1)
		n, err2 := ops.Count(t.Context(), store.Dead, c.f)
		if err := errors.Join(err, err2); err != nil || n != c.n || n > 0 && page.Records[0].ID.String() != c.first {
			t.Errorf("%s: %d letters, %+v, %v; want %d, the first %s", c.name, n, page.Records, err, c.n, c.first)
		}
	}
	gone, err := ops.DiscardAll(t.Context(), store.Filter{Error: "is unknown", Since: between}, admin.DeadLetterOptions{})
	if err != nil || len(gone) != 2 || gone[0].String() != unknown[1] {
		t.Errorf("DiscardAll: %v, %v", gone, err)
	}
	done, err := ops.ReplayAll(t.Context(), store.Filter{Until: between}, admin.DeadLetterOptions{Limit: 4})
	if err != nil || len(done.IDs) != 4 || done.IDs[0].String() != refused[0] {
		t.Errorf("ReplayAll: %v, %v", done.IDs, err)
	}
	if n, err := ops.Count(t.Context(), store.Dead, store.Filter{}); n != 4 || err != nil {
		t.Errorf("%d dead letters remain, %v; want 4", n, err)
	}
	if _, err := ops.Count(t.Context(), store.Dead, store.Filter{Since: between, Until: between}); !errors.Is(err, admin.ErrInvalid) {
		t.Errorf("a filter without a time in it: %v", err)
	}
}

// TestLettersAtARate: a rate makes batches smaller, and a change that waits for
// its rate ends with its context.
func TestLettersAtARate(t *testing.T) {
	ops, _, _, _ := letters(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	var steps []admin.Progress
	done, err := ops.ReplayAll(ctx, store.Filter{}, admin.DeadLetterOptions{Rate: 1e-9, Progress: func(p admin.Progress) {
		steps = append(steps, p)
		cancel(stop)
	}})
	if !errors.Is(err, stop) || len(done.IDs) != 1 || !slices.Equal(steps, []admin.Progress{{Done: 1, Total: 10}}) {
		t.Errorf("replayed %v in the steps %v, %v", done.IDs, steps, err)
	}
	if err == nil || !strings.Contains(err.Error(), "stopped after 1 of 10 dead letters") {
		t.Errorf("the error is %v", err)
	}
	// The last dead letter needs no wait.
	if done, err := ops.ReplayAll(t.Context(), store.Filter{}, admin.DeadLetterOptions{Rate: 1e-9, Limit: 1}); err != nil || len(done.IDs) != 1 {
		t.Errorf("replayed %v, %v", done.IDs, err)
	}
	for _, o := range []admin.DeadLetterOptions{{Limit: -1}, {Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)}} {
		if done, err := ops.ReplayAll(t.Context(), store.Filter{}, o); !errors.Is(err, admin.ErrInvalid) || len(done.IDs) > 0 {
			t.Errorf("%+v replayed %v, %v", o, done.IDs, err)
		}
	}
}
