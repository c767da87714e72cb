package relay

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// answers is a sink that returns prepared results.
type answers []error

func (a answers) Deliver(_ context.Context, batch []waybill.Delivery) []error { return a[:len(batch)] }

// TestObserverCostsNothing: a nil hook costs nothing. One event is taken,
// delivered and evaluated; that allocates the item and the claim of its
// delivery, and nothing else, without an observer as well as with one whose
// hooks retain nothing. An event that fails or becomes a dead letter allocates
// as much with such an observer as without one.
func TestObserverCostsNothing(t *testing.T) {
	hooks := observe.Hooks{
		ColdEnqueued: func(observe.ColdEnqueuedInfo) {}, HotEnqueued: func(observe.HotEnqueuedInfo) {}, HotDropped: func(observe.HotDroppedInfo) {}, QueueDepths: func(observe.QueueDepthsInfo) {},
		Deliver: func(ctx context.Context, _ observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
			return ctx, func(observe.DeliverDoneInfo) {}
		},
		Delivered: func(observe.DeliveredInfo) {},
		Failed:    func(observe.FailedInfo) {},
		Died:      func(observe.DiedInfo) {},
		Paused:    func(observe.PausedInfo) {}, Lanes: func(observe.LanesInfo) {}, Lag: func(observe.LagInfo) {},
	}
	for name, c := range map[string]struct {
		err  error
		want float64 // negative: as much as without an observer
	}{
		"delivered": {nil, 2},
		"failed":    {errors.New("boom"), -1},
		"dead":      {waybill.Permanent(errors.New("boom")), -1},
	} {
		without, with := allocations(t, observe.Hooks{}, c.err), allocations(t, hooks, c.err)
		if c.want >= 0 && without != c.want {
			t.Errorf("%s: %v allocations without an observer, want %v", name, without, c.want)
		}
		if with != without {
			t.Errorf("%s: %v allocations with an observer, %v without", name, with, without)
		}
	}
}

// allocations returns the number of allocations for one event in a relay, from
// the read to its outcome.
func allocations(t *testing.T, hooks observe.Hooks, answer error) float64 {
	t.Helper()
	cfg, err := Config{Workers: 1, Observe: hooks, Logger: slog.New(slog.DiscardHandler)}.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(database{Relay: &hubOnly{}}, answers{answer}, cfg)
	defer e.timer.Stop()
	now := time.Now()
	e.member.renewed(now, time.Hour)
	l := newLane(driver.Lease{Lane: 1})
	l.open = true
	e.lanes.add(l)
	row := store.Row{Key: store.Key{Lane: 1, Seq: 1, ID: waybill.NewID()}, CreatedAt: now}
	row.Event = waybill.Event{ID: row.ID, Type: "Tested", Payload: []byte("1")}
	return testing.AllocsPerRun(1000, func() {
		if !e.take(l, &row, now) {
			t.Fatal("the relay has no room for the row")
		}
		e.dispatch(now)
		j := <-e.jobs
		e.deliver(j)
		e.finishJob(j)
		e.gauges()
		if len(e.pending.list) != 1 {
			t.Fatalf("%d outcomes, want 1", len(e.pending.list))
		}
		// The event is settled.
		clear(e.pending.list)
		e.pending.list = e.pending.list[:0]
		delete(l.items, row.ID)
		l.unsettled, l.busy = 0, 0
	})
}
