package relay

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// answers is a sink that returns prepared results.
type answers []error

func (a answers) Deliver(_ context.Context, batch []waybill.Delivery) []error { return a[:len(batch)] }

// TestObserverCostsNothing: a nil hook costs nothing. An event is taken,
// delivered, evaluated and settled; that allocates its item and nothing else,
// without an observer as well as with one whose hooks retain nothing. An event
// that fails or becomes a dead letter allocates as much with such an observer
// as without one.
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
		"delivered": {nil, 1},
		"failed":    {errors.New("boom"), -1},
		"dead":      {waybill.Permanent(errors.New("boom")), -1},
	} {
		without, with := perEvent(t, observe.Hooks{}, c.err), perEvent(t, hooks, c.err)
		if c.want >= 0 && without != c.want {
			t.Errorf("%s: %v allocations without an observer, want %v", name, without, c.want)
		}
		if with != without {
			t.Errorf("%s: %v allocations with an observer, %v without", name, with, without)
		}
	}
}

// perEvent returns the number of allocations for one event in a relay, from the
// read to its settlement: what 64 more events in a page cost, without the
// growth of slices and maps.
func perEvent(t *testing.T, hooks observe.Hooks, answer error) float64 {
	t.Helper()
	return math.Floor((allocations(t, hooks, answer, 128) - allocations(t, hooks, answer, 64)) / 64)
}

func allocations(t *testing.T, hooks observe.Hooks, answer error, events int) float64 {
	t.Helper()
	cfg, err := Config{Workers: 1, Observe: hooks, Logger: slog.New(slog.DiscardHandler)}.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(database{Relay: &hubOnly{}}, slices.Repeat(answers{answer}, events), cfg)
	defer e.timer.Stop()
	now := time.Now()
	e.member.renewed(now, time.Hour)
	e.main.ledger.LaneAcquired(driver.Lease{Lane: 1}, nil, now)
	answerTo := func(kind ledger.ReadKind, a ledger.Answer) {
		r, ok := e.main.ledger.StartRead(kind, now)
		if !ok {
			t.Fatalf("there is no %s read", kind)
		}
		e.main.ledger.RowsRead(r, a, now)
	}
	answerTo(ledger.ReadHolds, ledger.Answer{})
	answerTo(ledger.ReadWriters, ledger.Answer{Writers: &driver.WriterState{}})
	rows := make([]store.Row, events)
	for i := range rows {
		id := waybill.NewID()
		rows[i] = store.Row{Key: store.Key{Lane: 1, Seq: int64(i + 1), ID: id}, CreatedAt: now}
		rows[i].Event = waybill.Event{ID: id, Type: "Tested", Payload: []byte("1")}
	}
	return testing.AllocsPerRun(100, func() {
		now = now.Add(time.Minute) // a poll is due
		answerTo(ledger.ReadFast, ledger.Answer{Page: driver.Page{Rows: rows, Now: now}})
		e.member.renewed(now, time.Hour)
		e.main.dispatch(now)
		j := <-e.main.jobs
		e.main.deliver(j)
		e.main.finishJob(j)
		e.report(now)
		e.gauges()
		s, ok := e.main.ledger.NextSettlement(now.Add(time.Second))
		if !ok || s.Events() != events {
			t.Fatalf("%d outcomes, want %d", s.Events(), events)
		}
		e.main.ledger.Settled(s, driver.Settled{Held: []int{1}}, time.Millisecond, now)
	})
}
