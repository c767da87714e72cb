package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// tenantRow returns a row of a tenant in lane 1; without an aggregate if its
// name is empty.
func tenantRow(seq int64, tenant, aggregate string) store.Row {
	row := store.Row{Key: store.Key{Lane: 1, Seq: seq, ID: waybill.NewID()}}
	row.Event = waybill.Event{ID: row.ID, TenantID: tenant, AggregateID: aggregate}
	if aggregate != "" {
		row.Event.AggregateType = "thing"
	}
	return row
}

// crowded returns a ledger whose lane 1 has a backlog of one tenant, and its
// lane.
func crowded(t *testing.T, now time.Time, lease driver.Lease) (*Ledger, *lane) {
	t.Helper()
	g := New(Config{BatchSize: 10, ColdQueue: 10, PollInterval: time.Second, SweepInterval: time.Hour, Backoff: func(int) time.Duration { return time.Second }})
	lease.Lane = 1
	g.LaneAcquired(lease, nil, now)
	g.RowsRead(Read{Kind: ReadHolds, lanes: g.lanes.list}, Answer{}, now)
	g.RowsRead(Read{Kind: ReadWriters}, Answer{Writers: &driver.WriterState{HighSeq: 1 << 40, Issued: 1 << 40}}, now)
	l := g.lanes.at(1)
	var rows []store.Row
	for seq := range int64(10) {
		rows = append(rows, tenantRow(seq+1, "loud", fmt.Sprint("a", seq)))
	}
	r, ok := g.StartRead(ReadFast, now)
	if !ok || r.Limit > len(rows) {
		t.Fatalf("the fast read has a limit of %d", r.Limit)
	}
	g.RowsRead(r, Answer{Page: driver.Page{Rows: rows, Now: now}}, now)
	if l.scan.position != 10 || g.queueRoom() != 0 || g.crowd.isOther("loud") {
		t.Fatalf("the lane is read to %d, there is room for %d, the crowd is %v", l.scan.position, g.queueRoom(), g.crowd.names)
	}
	return g, l
}

// readOthers makes a read of others, which looks at these rows.
func readOthers(t *testing.T, g *Ledger, rows []store.Row, now time.Time) (returned int, ok bool) {
	t.Helper()
	if w := g.wish(ReadOthers); !w.wanted || w.at.After(now) {
		return 0, false
	}
	r, ok := g.StartRead(ReadOthers, now)
	if !ok {
		t.Fatal("a read is wanted, and there is nothing to read")
	}
	a := Answer{Page: driver.Page{Now: now}}
	for _, row := range rows {
		if row.Seq > r.Cursors[0].After {
			a.Refs = append(a.Refs, driver.RowRef{Key: row.Key, Aggregate: driver.AggregateOf(&row.Event), Tenant: row.Event.TenantID})
		}
	}
	var keys []store.Key
	a.Refs, keys = r.Others(a.Refs)
	for _, row := range rows {
		if slices.Contains(keys, row.Key) {
			a.Page.Rows = append(a.Page.Rows, row)
		}
	}
	g.RowsRead(r, a, now)
	return len(a.Page.Rows), true
}

// TestOthersWithoutRoom: with a full queue, at most othersLimit events of other
// tenants are taken. The next read begins in front of the first row that was
// not, so that no row of an aggregate is taken before an earlier one.
func TestOthersWithoutRoom(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	var rows []store.Row
	for i := range int64(2 * othersLimit) {
		rows = append(rows, tenantRow(100+i, fmt.Sprint("quiet", i%8), "q"))
	}
	for n, visible := range []int{40, len(rows), len(rows)} { // more have committed
		now = now.Add(time.Second)
		if _, ok := readOthers(t, g, rows[:visible], now); ok != (n < 2) {
			t.Fatalf("read %d: there is one: %v", n, ok)
		}
	}
	if g.memory.others != othersLimit || l.scan.ahead.position != 100+othersLimit-1 {
		t.Fatalf("%d events were taken, up to %d; want %d, up to %d", g.memory.others, l.scan.ahead.position, othersLimit, 100+othersLimit-1)
	}
	// Some are delivered, and the next ones fit.
	var batch []*Item
	for len(batch) < 40 {
		items := g.NextBatch(nil, 1, now)
		if len(items) == 0 {
			break
		}
		batch = append(batch, items...)
	}
	var order []int64
	for _, it := range batch {
		if it.row.Event.TenantID != "loud" {
			order = append(order, it.row.Seq)
		}
	}
	if want := []int64{100, 101, 102, 103, 104, 105, 106, 107}; !slices.Equal(order, want) {
		t.Errorf("the events %v of quiet tenants are delivered, want the first of each aggregate: %v", order, want)
	}
	now = now.Add(time.Second)
	if _, ok := readOthers(t, g, rows, now); !ok || l.items[rows[othersLimit].ID] == nil {
		t.Error("there is room again, and the next event is not taken")
	}
}

// TestHorizonBesideACrowd: a read of others that has to begin at the horizon
// lists rows again. The horizon is checked more often then, and a transaction
// is excluded when it has been open for as long as otherwise.
func TestHorizonBesideACrowd(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	g.horizon.seq, g.horizon.drawn, l.scan.floor = 2, 2, 2
	if _, ok := readOthers(t, g, []store.Row{tenantRow(50, "quiet", "q")}, now.Add(time.Second)); !ok || l.scan.ahead.floor != 2 {
		t.Fatalf("a read of others begins at %d, want the horizon 2", l.scan.ahead.floor)
	}
	open := &driver.WriterState{HighSeq: 40, Issued: 1 << 40, Open: []string{"x1"}}
	began := now
	for n := 0; !g.horizon.hasExcluded(); n++ {
		if n > 50 {
			t.Fatal("the transaction is never excluded")
		}
		now = g.horizon.next
		g.RowsRead(Read{Kind: ReadWriters}, Answer{Writers: open}, now)
		if pause := g.horizon.next.Sub(now); pause != crowdedHorizon {
			t.Fatalf("the next check comes after %v, want %v", pause, crowdedHorizon)
		}
	}
	if took := now.Sub(began); took < (oldChecks-1)*horizonInterval || took > (oldChecks+1)*horizonInterval {
		t.Errorf("the transaction is excluded after %v, want %d checks of %v", took, oldChecks, horizonInterval)
	}
	g.crowd.disperse()
	g.RowsRead(Read{Kind: ReadWriters}, Answer{Writers: open}, now)
	if pause := g.horizon.next.Sub(now); pause != horizonInterval {
		t.Errorf("without a crowd, the next check comes after %v", pause)
	}
}

// TestOthersBehindALateCommit: a row of a quiet tenant that committed late
// behind the position of the fast read is left to that read, and so are the
// rows behind it.
func TestOthersBehindALateCommit(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	g.horizon.seq, l.scan.floor = 2, 2
	late, next := tenantRow(5, "quiet", "q"), tenantRow(50, "quiet", "q")
	now = now.Add(time.Second)
	if n, ok := readOthers(t, g, []store.Row{late, next}, now); !ok || n != 2 || len(l.items) != 10 || !l.scan.woken {
		t.Errorf("%d rows were read, %d events are in memory, want those of the fast read; a fast read follows: %v", n, len(l.items), l.scan.woken)
	}
}

// TestOthersBesideAnExcludedTransaction: when an excluded transaction has ended
// by the end of a read of others, its rows come first.
func TestOthersBesideAnExcludedTransaction(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	g.horizon.old, l.scan.ahead = map[string]int64{"x1": 3}, ahead{position: 40, floor: 3}
	r, ok := g.StartRead(ReadOthers, now.Add(time.Second))
	if !ok || !r.Verify {
		t.Fatalf("the read asks for the open transactions: %v", r.Verify)
	}
	row := tenantRow(50, "quiet", "q")
	a := Answer{
		Page: driver.Page{Rows: []store.Row{row}}, Refs: []driver.RowRef{{Key: row.Key, Tenant: "quiet"}}, Writers: &driver.WriterState{HighSeq: 60, Issued: 60},
	}
	if g.RowsRead(r, a, now.Add(time.Second)); l.items[row.ID] != nil || !l.scan.rescan || l.scan.ahead.position != 0 {
		t.Errorf("the row is taken: %v, the rows behind the position are checked: %v", l.items[row.ID] != nil, l.scan.rescan)
	}
}

// TestOthersOfATenantThatLeaves: the reads of others have passed the rows of a
// tenant that crowded. When it leaves, they begin again.
func TestOthersOfATenantThatLeaves(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	now = now.Add(time.Second)
	if _, ok := readOthers(t, g, []store.Row{tenantRow(20, "loud", "a20"), tenantRow(50, "quiet", "q")}, now); !ok || l.scan.ahead.position != 50 {
		t.Fatalf("a read of others has looked up to %d, want 50", l.scan.ahead.position)
	}
	for range 20 {
		g.crowdReads([]store.Row{tenantRow(0, "other", "")})
	}
	if !g.crowd.isOther("loud") || l.scan.ahead != (ahead{}) {
		t.Errorf("the tenant has left: %v; the next read looks from %+v on", g.crowd.isOther("loud"), l.scan.ahead)
	}
}

// TestOthersAfterACrash: the rows of other tenants that the crashed owner had
// taken ahead are not known, so that all rows that are taken ahead are suspect
// until the lane has been read to its end; and the next owner learns of it.
func TestOthersAfterACrash(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, unclean := range []bool{false, true} {
		g, l := crowded(t, now, driver.Lease{Epoch: 1, Unclean: unclean, Window: 100})
		row := tenantRow(50, "quiet", "")
		if _, ok := readOthers(t, g, []store.Row{row}, now.Add(time.Second)); !ok {
			t.Fatal("there is no read of others")
		}
		if it := l.items[row.ID]; it == nil || it.suspect != unclean {
			t.Errorf("unclean: %v: the event in memory is %+v", unclean, it)
		}
		l.suspicion.ready, l.suspicion.late, l.suspicion.urgent, l.suspicion.wary = places{}, places{}, places{}, nil
		if got := g.Lanes()[0].Suspects; got != unclean {
			t.Errorf("unclean: %v: the lane has suspects: %v", unclean, got)
		}
		l.suspicion.seenReady()
		if g.Lanes()[0].Suspects {
			t.Error("the lane has been read to its end, and has suspects")
		}
	}
}

// TestCrowd: a tenant crowds while it has a sixteenth of the pages. When it no
// longer does, the reads of others begin again, at most every five seconds.
func TestCrowd(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	page := func(tenants ...string) (rows []store.Row) {
		for i, tenant := range tenants {
			rows = append(rows, tenantRow(int64(i), tenant, ""))
		}
		return rows
	}
	c := crowd{shares: make(shares), ahead: make(shares), names: make(map[string]struct{})}
	c.saw(page("loud", "loud", "loud", "quiet"), now)
	if c.isOther("loud") || c.isOther("quiet") || !c.isOther("") {
		t.Errorf("with a quarter of a page at least, the crowd is %v", c.names)
	}
	left := 0
	for range 40 {
		if c.saw(page("loud", "other"), now) {
			left++
		}
	}
	if left != 1 || !c.isOther("quiet") || c.isOther("other") {
		t.Errorf("the crowd is %v, and was left %d times, want once", c.names, left)
	}
	for range 40 {
		if c.saw(page("loud"), now) {
			t.Fatal("the crowd was left again within five seconds")
		}
	}
	if !c.saw(page("loud"), now.Add(leavePause)) || !c.isOther("other") {
		t.Errorf("after five seconds, the crowd is %v", c.names)
	}
	// A tenant with all events of a read of others crowds, too; one with a few
	// does not.
	for range othersLimit / 4 {
		c.tookOther("other")
	}
	if c.tookOthers(); !c.isOther("other") {
		t.Error("with a fourth of what a read of others takes, a tenant crowds")
	}
	for range othersLimit {
		c.tookOther("other")
	}
	if c.tookOthers(); c.isOther("other") {
		t.Error("with all of what a read of others takes, a tenant does not crowd")
	}
}

// TestNoReadOfOthersWithoutTenants: an outbox whose events have no tenants has
// no reads of others; and neither has one without a backlog or whose store
// cannot report open transactions, nor the backlog of a destination.
func TestNoReadOfOthersWithoutTenants(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	g, l := crowded(t, now, driver.Lease{Epoch: 1})
	later := now.Add(time.Second)
	if w := g.wish(ReadOthers); !w.wanted || w.at.After(later) {
		t.Fatal("beside a crowd, no read of others is wanted")
	}
	g.horizon.unknown = true
	if g.wish(ReadOthers).wanted {
		t.Error("without a horizon, a read of others is wanted")
	}
	g.horizon.unknown, g.cfg.Backlog = false, true
	if g.wish(ReadOthers).wanted {
		t.Error("in the backlog of a destination, a read of others is wanted")
	}
	g.cfg.Backlog, l.scan.rescan = false, true
	if g.wish(ReadOthers).wanted {
		t.Error("a read of others is wanted before the rows behind the position were checked")
	}
	l.scan.rescan = false
	for _, it := range l.items {
		g.drop(it)
	}
	l.scan.state = caughtUp
	if g.wish(ReadOthers).wanted {
		t.Error("without a backlog, a read of others is wanted")
	}
	g.crowdReads(nil)
	if len(g.crowd.names) > 0 {
		t.Errorf("without a backlog, the crowd is %v", g.crowd.names)
	}
	g.crowd, l.scan.state = crowd{}, behind
	g.crowdReads([]store.Row{tenantRow(60, "", ""), tenantRow(61, "", "")})
	if g.wish(ReadOthers).wanted || g.crowd.tenants {
		t.Error("without tenants, a read of others is wanted")
	}
}
