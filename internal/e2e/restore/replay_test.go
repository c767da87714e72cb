//go:build linux || darwin

package restore_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

// TestConsumerRestored: the database of a consumer is restored from a backup.
// Its sums are wrong, and right again after a replay of the history since the
// backup: every missing order is applied once, in order, before newer ones.
// The other destination receives nothing again.
func TestConsumerRestored(t *testing.T) {
	onEach(t, func(t *testing.T, open func(*testing.T) *place) {
		at := open(t).use()
		consumer := open(t)
		s, b := &shop{T: t}, &billing{T: t}
		var other ledger
		s.on(at)
		applied := consumer.use()
		b.on(applied)
		b.create()
		r, err := relay.NewTo(at.Roles, relay.Config{PollInterval: 50 * time.Millisecond, Heartbeat: 200 * time.Millisecond, Logger: logger(t)},
			relay.Destination{Name: "billing", Sink: b},
			relay.Destination{Name: "other", Sink: relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
				other.add(receipt{Delivery: d})
				return nil
			})})
		must(t, err)
		run(t, r.Run)
		ops, err := admin.NewDestinations(at.Roles, admin.Config{Logger: logger(t)})
		must(t, err)
		find := func() admin.Destination {
			t.Helper()
			d, err := ops.Find(t.Context(), "billing")
			must(t, err)
			return d
		}
		applies := func() bool {
			sums, numbers := b.sums()
			return sums == s.sums && numbers == s.number
		}

		s.write(150)
		await(t, "the first orders are applied", applies)
		since := time.Now().Truncate(time.Millisecond) // the precision of every store
		consumer.dump()
		s.write(130)
		await(t, "later orders are applied", applies)
		_, err = ops.Pause(t.Context(), "billing", "its database is restored")
		must(t, err)
		await(t, "the relay has paused", func() bool {
			s.write(1)
			return find().Ready > 0
		})
		s.write(40) // while the database is restored
		must(t, applied.close())
		consumer.restore()
		b.on(consumer.use())
		want := int64(len(s.ids)) - find().Ready
		if sums, numbers := b.sums(); sums == s.sums || numbers == s.number {
			t.Fatal("the restoration has changed nothing")
		}

		await(t, "all orders are in the history", func() bool {
			n, err := ops.CountHistory(t.Context(), "billing", driver.HistoryQuery{})
			must(t, err)
			return n == int64(len(s.ids))
		})
		q := driver.HistoryQuery{Since: since}
		found, err := ops.CountHistory(t.Context(), "billing", q)
		must(t, err)
		again, err := ops.Replay(t.Context(), "billing", q, admin.ReplayOptions{})
		must(t, err)
		if again.Matched != found || again.Replayed < 130 || again.Replayed > want {
			t.Errorf("%+v, %d were counted; want at least 130 replayed, and at most %d", again, found, want)
		}
		_, err = ops.Resume(t.Context(), "billing")
		must(t, err)
		s.write(20)
		await(t, "nothing is pending", func() bool { return find().Rows() == 0 && find().Behind == 0 })
		await(t, "all orders are applied", applies)
		if n := find().Dead; n > 0 {
			t.Errorf("%d dead letters", n)
		}
		got := map[waybill.ID]int{}
		for _, r := range other.receipts() {
			got[r.ID]++
		}
		for _, id := range s.ids {
			if got[id] != 1 {
				t.Errorf("the other destination received event %s %d times", id, got[id])
			}
		}
	})
}
