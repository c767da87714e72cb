package drivertest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// inBacklog returns the named checks of the outbox as checks of a backlog: the
// events that they write are diverted, and their reads, settlements and
// commands are those of the backlog. The destinations before and after it have
// rows of the same events, in every state, which the check must neither see nor
// change.
func inBacklog[T any](row string, all []check[T], names ...string) []check[T] {
	var chosen []check[T]
	for _, c := range all {
		if !slices.Contains(names, c.name) {
			continue
		}
		run := c.run
		c.row, c.suite, c.fresh = row, backlogSuite, false
		c.run = func(ctx context.Context, t tb, b *env[T]) {
			d := newDetour(ctx, t, b)
			defer d.inner.end()
			run(ctx, t, d.inner)
			d.inner.end()
			d.wantOthersUnchanged(ctx, t)
		}
		chosen = append(chosen, c)
	}
	if len(chosen) != len(names) {
		panic("drivertest: no such checks among " + row)
	}
	return chosen
}

// detour diverts all events that a check writes.
type detour[T any] struct {
	outer, inner *env[T]
	// mine is the number of the destination whose backlog is checked.
	mine   int
	others [2]neighbor

	mu sync.Mutex
	// held are the leases that the check has acquired last.
	held map[int]driver.Lease
}

// neighbor is another destination, which has received none of the events: of
// three events, one is ready, one deferred and due, and one dead.
type neighbor struct {
	number, phase int
	want          store.Stats
}

func newDetour[T any](ctx context.Context, t tb, b *env[T]) *detour[T] {
	t.Helper()
	numbers := b.register(ctx, t, b.unique("before"), b.unique("mine"), b.unique("after"))
	d := &detour[T]{outer: b, mine: numbers[1], held: map[int]driver.Lease{}}
	d.others = [2]neighbor{{number: numbers[0]}, {number: numbers[2], phase: 1}}
	d.inner = &env[T]{
		Instance: b.Instance, features: b.features, lanes: b.lanes, beginner: b.beginner, patience: b.patience, short: b.short, tag: b.tag,
		noHistory: true, written: d.divert,
	}
	d.inner.DB = d.roles(b.DB)
	d.inner.Second = func() driver.Roles[T] { return d.roles(b.second()) }
	return d
}

// roles returns the roles of a store whose outbox is the backlog.
func (d *detour[T]) roles(db driver.Roles[T]) driver.Roles[T] {
	backlog := db.Backlogs.Backlog(d.mine)
	db.Relay = backlogRelay{Lanes: notedLanes{Lanes: db.Relay, note: d.note}, Backlog: backlog, hub: db.Relay}
	db.OutboxAdmin = backlogAdmin{Backlog: backlog, Maintainer: db.OutboxAdmin}
	return db
}

// backlogRelay is a relay that delivers a backlog.
type backlogRelay struct {
	driver.Lanes
	driver.Backlog
	hub driver.Local
}

func (r backlogRelay) Local() *driver.Hub { return r.hub.Local() }

// backlogAdmin inspects and repairs a backlog.
type backlogAdmin struct {
	driver.Backlog
	driver.Maintainer
}

// notedLanes notes the leases that are acquired.
type notedLanes struct {
	driver.Lanes
	note func(leases []driver.Lease)
}

func (l notedLanes) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	leases, err := l.Lanes.Acquire(ctx, n, lanes, window)
	l.note(leases)
	return leases, err
}

func (d *detour[T]) note(leases []driver.Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range leases {
		d.held[l.Lane] = l
	}
}

// divert moves events from the outbox to all backlogs. An event that is
// scheduled is deferred there, until the same time.
func (d *detour[T]) divert(ctx context.Context, t tb, evs ...waybill.Event) {
	t.Helper()
	b := d.outer
	refs, err := b.DB.Relay.Sweep(ctx, b.cursors(), 100_000) // the rows may be too large for one page
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	known := map[waybill.ID]row{}
	for _, ref := range refs {
		known[ref.ID] = row{Key: ref.Key}
	}
	var rows, later []row
	delays := map[waybill.ID]time.Duration{}
	for _, ev := range evs {
		if ev.Delay > 0 {
			delays[ev.ID] = ev.Delay
			later = append(later, b.wantState(ctx, t, ev, store.Delayed).Row)
		} else if r, ok := known[ev.ID]; ok {
			r.Event.AggregateID = ev.AggregateID
			rows = append(rows, r)
		} else {
			t.Fatalf("event %s is not ready", ev.ID)
		}
	}
	all := slices.Concat(rows, later)
	n, own, leases := d.leases(ctx, t, all)
	b.divert(ctx, t, leases, all, spread(all, d.others[0].number, d.mine, d.others[1].number)...)
	settle := func(number int, s driver.Settlement) {
		t.Helper()
		s.Leases = leases
		if want := len(s.Retry) + len(s.Dead); want > 0 {
			if got := settleIn(ctx, t, b.backlog(number), s); len(got.Moved) != want {
				t.Fatalf("of %d rows of backlog %d, %d were settled", want, number, len(got.Moved))
			}
		}
	}
	var mine driver.Settlement
	for _, r := range later {
		res := readyResult(r)
		res.Delay = delays[r.ID]
		mine.Retry = append(mine.Retry, res)
	}
	settle(d.mine, mine)
	for i := range d.others {
		settle(d.others[i].number, d.others[i].settlement(all))
	}
	if err := b.DB.Relay.Release(ctx, own, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	if err := b.DB.Relay.Leave(ctx, n); err != nil {
		t.Fatalf("Leave: %v", err)
	}
}

// leases returns a node, its new leases of those lanes of the rows that the
// check does not own, and these and the check's leases together.
func (d *detour[T]) leases(ctx context.Context, t tb, rows []row) (n store.Node, own, all []driver.Lease) {
	t.Helper()
	lanes := make([]int, len(rows))
	for i, r := range rows {
		lanes[i] = r.Lane
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	db := d.outer.DB.Relay
	n = store.Node{ID: waybill.NewID(), Relay: relayName}
	d.outer.beat(ctx, t, db, n, defaultLease)
	own, err := db.Acquire(ctx, n, lanes, 7)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all = slices.Clone(own)
	for _, lane := range lanes {
		if !slices.ContainsFunc(own, func(l driver.Lease) bool { return l.Lane == lane }) {
			all = append(all, d.held[lane])
		}
	}
	return n, own, all
}

// settlement returns the settlement that brings new rows into their states.
func (n *neighbor) settlement(rows []row) driver.Settlement {
	var s driver.Settlement
	for _, r := range rows {
		res := readyResult(r)
		res.Attempts, res.Error, res.Holds = 40, "another destination's error", r.Event.Ordered()
		n.phase++
		switch n.phase % 3 {
		case 0:
			n.want.Ready++
			continue
		case 1:
			n.want.Failed, n.want.MaxAttempts = n.want.Failed+1, res.Attempts
			s.Retry = append(s.Retry, res)
		case 2:
			n.want.Dead++
			s.Dead = append(s.Dead, res)
		}
		if res.Holds {
			n.want.Holding++
		}
	}
	return s
}

// wantOthersUnchanged asserts that the rows of other destinations are as they
// were.
func (d *detour[T]) wantOthersUnchanged(ctx context.Context, t tb) {
	t.Helper()
	for _, n := range d.others {
		got, err := d.outer.backlog(n.number).Stats(ctx)
		if err != nil {
			t.Fatalf("Stats: %v", err)
		}
		got.Now, got.Oldest, got.Membership = time.Time{}, time.Time{}, store.Membership{}
		want(t, "the rows of another destination", got, n.want)
	}
}
