//go:build linux || darwin

package restore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestOutboxRestored: the database of an outbox is restored from a backup that
// was made while events were in flight, deferred, and behind at a destination.
// After "waybill restored" no position is issued for another event, every event
// of the backup arrives, only announced events arrive again, and consumers that
// refuse old positions receive every new event.
func TestOutboxRestored(t *testing.T) {
	onEach(t, func(t *testing.T, open func(*testing.T) *place) {
		for _, wrong := range restoreOutbox(t, open(t), true) {
			t.Error(wrong)
		}
	})
}

// TestOutboxRestoredSilently: without the command the same steps issue
// positions twice, and consumers refuse new events. Otherwise
// TestOutboxRestored would test nothing.
func TestOutboxRestoredSilently(t *testing.T) {
	onEach(t, func(t *testing.T, open func(*testing.T) *place) {
		wrong := strings.Join(restoreOutbox(t, open(t), false), "\n")
		for _, want := range []string{"belongs to events", "audit does not have event"} {
			if !strings.Contains(wrong, want) {
				t.Errorf("this did not go wrong: %q; but this: %s", want, wrong)
			}
		}
	})
}

// backup is one test: an outbox with two destinations. Billing sums up orders
// in a database that is not restored; audit remembers one position per account
// and refuses all that are not newer.
type backup struct {
	*testing.T
	place   *place
	at      *tables
	shop    shop
	billing billing
	got     ledger

	auditDown atomic.Bool
	busy      sync.RWMutex // billing's calls wait while it is locked
	again     atomic.Bool  // the database was restored
	last      map[string]waybill.Position

	pending  []store.Record // of the restored tables
	report   admin.Restored
	fresh    []waybill.ID   // written after the restoration
	lost     []store.Record // written after the backup
	stopped  func()
	problems []string
}

// restoreOutbox plays the test and returns what went wrong.
func restoreOutbox(t *testing.T, p *place, restored bool) []string {
	t.Helper()
	b := &backup{T: t, place: p, shop: shop{T: t}, billing: billing{T: t}, last: map[string]waybill.Position{}}
	consumer := sqlitePlace(t).use()
	b.billing.on(consumer)
	b.billing.create()
	b.open()
	b.before()
	b.stopped()
	must(t, b.at.close())
	p.restore()
	b.open()
	b.pending = b.listPending()
	if restored {
		b.restored()
	}
	b.again.Store(true)
	b.start()
	b.fresh = b.shop.write(120)
	b.awaitDelivered()
	b.stopped()
	b.checkPositions()
	b.checkNothingLost()
	if restored {
		b.checkAnnounced()
	}
	return b.problems
}

func (b *backup) wrong(format string, args ...any) {
	if len(b.problems) < 1000 {
		b.problems = append(b.problems, fmt.Sprintf(format, args...))
	}
}

// open opens the outbox.
func (b *backup) open() {
	b.Helper()
	b.at = b.place.use()
	b.shop.T = b.T
	b.shop.on(b.at)
}

// start starts a relay.
func (b *backup) start() {
	b.Helper()
	r, err := relay.NewTo(b.at.Roles, relay.Config{
		Lease: 2 * time.Second, Heartbeat: 200 * time.Millisecond, PollInterval: 50 * time.Millisecond, BackoffBase: 20 * time.Millisecond,
		BackoffMax: 200 * time.Millisecond, Logger: logger(b.T),
	}, relay.Destination{Name: "billing", Sink: relay.SinkFunc(b.bill), DivertAfter: -1},
		relay.Destination{Name: "audit", Sink: relay.SinkFunc(b.audit), DivertAfter: -1})
	must(b.T, err)
	b.stopped = run(b.T, r.Run)
}

// bill is the destination billing.
func (b *backup) bill(ctx context.Context, d waybill.Delivery) error {
	b.busy.RLock()
	defer b.busy.RUnlock()
	err := b.billing.Deliver(ctx, []waybill.Delivery{d})[0]
	if err == nil || errors.Is(err, waybill.ErrReplayed) {
		b.got.add(receipt{Delivery: d, destination: "billing", again: b.again.Load()})
	}
	return err
}

// audit is the destination audit.
func (b *backup) audit(_ context.Context, d waybill.Delivery) error {
	if b.auditDown.Load() {
		return waybill.Unavailable(errors.New("down"))
	}
	b.got.mu.Lock()
	defer b.got.mu.Unlock()
	last, known := b.last[d.AggregateID]
	old := known && !d.Position.Newer(last)
	if !old {
		b.last[d.AggregateID] = d.Position
	}
	b.got.all = append(b.got.all, receipt{Delivery: d, destination: "audit", again: b.again.Load(), old: old})
	return nil
}

// before makes a backup, and delivers more events behind it, with two more
// relays: their lanes have higher epochs than the backup.
func (b *backup) before() {
	b.Helper()
	b.start()
	b.shop.write(60)
	b.awaitDelivered()
	b.auditDown.Store(true)
	b.shop.write(40)
	b.await("billing has all", func() bool { return b.received("billing") == 100 })
	b.shop.schedule(10, 3*time.Second)
	b.busy.Lock() // billing keeps the next events in flight
	b.shop.write(30)
	b.place.dump()
	b.busy.Unlock()
	b.auditDown.Store(false)
	b.awaitDelivered()
	var lost []waybill.ID
	for range 2 {
		b.stopped()
		b.start()
		lost = append(lost, b.shop.write(60)...)
		b.awaitDelivered()
	}
	for _, id := range lost {
		found, err := b.at.OutboxAdmin.Find(b.Context(), id)
		must(b.T, err)
		b.lost = append(b.lost, found...)
	}
}

// restored runs the command as an operator does, who waits until the relay of
// the backup does not look alive any more.
func (b *backup) restored() {
	b.Helper()
	ops, err := admin.NewOutbox(b.at.Roles, admin.Config{Logger: logger(b.T)})
	must(b.T, err)
	b.await("the relay of the backup has expired", func() bool {
		b.report, err = ops.Restored(b.Context(), false)
		return !errors.Is(err, store.ErrRelayLive)
	})
	must(b.T, err)
}

// received returns the number of different events that a destination has.
func (b *backup) received(destination string) int {
	ids := map[waybill.ID]bool{}
	for _, r := range b.got.receipts() {
		if r.destination == destination {
			ids[r.ID] = true
		}
	}
	return len(ids)
}

// awaitDelivered waits until no event is pending.
func (b *backup) awaitDelivered() {
	b.Helper()
	b.await("all events are delivered", func() bool { return len(b.listPending()) == 0 })
}

func (b *backup) await(what string, ok func() bool) {
	b.Helper()
	await(b.T, what, ok)
}

// listPending returns the pending events of the outbox and of all backlogs.
func (b *backup) listPending() []store.Record {
	b.Helper()
	parts := []driver.Inspector{b.at.OutboxAdmin}
	all, err := b.at.Backlogs.AddDestinations(b.Context())
	must(b.T, err)
	for _, d := range all {
		parts = append(parts, b.at.Backlogs.Backlog(d.Number))
	}
	var out []store.Record
	for _, part := range parts {
		for _, state := range []store.State{store.Ready, store.Delayed} {
			found, err := part.List(b.Context(), state, store.Filter{}, 0, 10_000)
			must(b.T, err)
			out = append(out, found...)
		}
	}
	return out
}

// checkPositions reports positions, and places in lanes, of two events.
func (b *backup) checkPositions() {
	b.Helper()
	owner := map[waybill.Position]waybill.ID{}
	for _, r := range b.got.receipts() {
		for _, p := range []waybill.Position{r.Position, {Lane: r.Position.Lane, Seq: r.Position.Seq}} {
			if id, known := owner[p]; known && id != r.ID {
				b.wrong("position %+v belongs to events %s and %s", p, id, r.ID)
			}
			owner[p] = r.ID
		}
	}
}

// checkNothingLost reports new events, and events of the backup, that a
// destination has not received, or has refused, and wrong sums.
func (b *backup) checkNothingLost() {
	b.Helper()
	type key struct {
		id          waybill.ID
		destination string
	}
	got := map[key]bool{}
	for _, r := range b.got.receipts() {
		if !r.old {
			got[key{r.ID, r.destination}] = true
		}
	}
	wanted := slices.Clone(b.fresh)
	for _, r := range b.pending {
		wanted = append(wanted, r.ID)
	}
	for _, id := range wanted {
		for _, destination := range []string{"billing", "audit"} {
			if !got[key{id, destination}] {
				b.wrong("%s does not have event %s", destination, id)
			}
		}
	}
	sums, numbers := b.billing.sums()
	if sums != b.shop.sums || numbers != b.shop.number {
		b.wrong("the accounts have %v after %v orders, want %v after %v", sums, numbers, b.shop.sums, b.shop.number)
	}
}

// checkAnnounced reports events that arrived again although the command had not
// announced them, and events that were lost although it had not announced that.
func (b *backup) checkAnnounced() {
	b.Helper()
	type key struct {
		id          waybill.ID
		destination string
	}
	before, again := map[key]bool{}, map[waybill.ID]receipt{}
	for _, r := range b.got.receipts() {
		k := key{r.ID, r.destination}
		if r.again && before[k] {
			again[r.ID] = r
		}
		before[k] = before[k] || !r.again
	}
	if n := int64(len(again)); n == 0 || n > b.report.Pending {
		b.wrong("%d events arrived again, announced were at most %d", n, b.report.Pending)
	}
	if n := int64(len(b.pending)); n != b.report.Pending {
		b.wrong("%d events were announced, the backup has %d", b.report.Pending, n)
	}
	announced := map[waybill.ID]bool{}
	for _, r := range b.pending {
		announced[r.ID] = true
		if r.CreatedAt.Before(b.report.Since) || r.CreatedAt.After(b.report.Until) {
			b.wrong("event %s was written at %v, announced were %v to %v", r.ID, r.CreatedAt, b.report.Since, b.report.Until)
		}
	}
	for id := range again {
		if !announced[id] {
			b.wrong("event %s arrived again, and is not pending in the backup", id)
		}
	}
	for _, r := range b.lost {
		if !r.CreatedAt.After(b.report.Until) {
			b.wrong("event %s is not in the backup; it was written at %v, announced was a loss after %v", r.ID, r.CreatedAt, b.report.Until)
		}
	}
	b.Logf("announced: %d events, of %v; %d arrived again", b.report.Pending, b.report.Until.Sub(b.report.Since), len(again))
}
