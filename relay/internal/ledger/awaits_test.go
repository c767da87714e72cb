package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestPollsRestWhileALaneWaits: the lanes beside one that waits for a copy are
// not read without a pause. In virtual time, in which reads take no time, such
// reads would never end.
func TestPollsRestWhileALaneWaits(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	mayTake := int64(math.MaxInt64)
	g := New(Config{
		BatchSize: 10, ColdQueue: 100, MaxBytes: 1 << 20, PollInterval: 2 * time.Second, SweepInterval: time.Minute,
		Backlog: true, MayTake: func(int) int64 { return mayTake }, Backoff: func(int) time.Duration { return time.Second },
	})
	g.SetLaneCount(2)
	for lane := range 2 {
		g.LaneAcquired(driver.Lease{Lane: lane, Epoch: 1}, nil, now)
	}
	var rows []store.Row
	// read makes all reads that are due, and reports false if there is no end.
	read := func() bool {
		for range 100 {
			if !readOnce(g, rows, now) {
				return true
			}
		}
		return false
	}
	for n := range int64(20) {
		rows = append(rows, store.Row{Key: store.Key{Lane: 1, Seq: n + 1, ID: waybill.NewID()}})
		g.Appended(1, n+1, now)
		if !read() {
			t.Fatalf("after %d rows the reads do not end", n+1)
		}
		g.Counts()
		now = now.Add(time.Millisecond)
	}
	// The next reads would follow in close succession. Lane 0 has a row that
	// may not be taken before another one has appeared.
	rows = append(rows, store.Row{Key: store.Key{Lane: 1, Seq: 29, ID: waybill.NewID()}})
	g.Appended(1, 29, now)
	for g.Counts().ColdTaken == 0 {
		if !readOnce(g, rows, now) {
			t.Fatal("the row is not read")
		}
	}
	mayTake = 30
	rows = append([]store.Row{{Key: store.Key{Lane: 0, Seq: 31, ID: waybill.NewID()}}}, rows...)
	g.Appended(0, 31, now)
	if !read() {
		t.Error("while a lane waits, the reads do not end")
	}
}

// readOnce makes one read of rows that is due; false if there is none.
func readOnce(g *Ledger, rows []store.Row, now time.Time) bool {
	for kind := range g.DueReads(now) {
		r, ok := g.StartRead(kind, now)
		if !ok {
			continue
		}
		a := Answer{Page: driver.Page{Now: now}}
		if r.Verify {
			a.Writers = &driver.WriterState{HighSeq: math.MaxInt64, Issued: math.MaxInt64}
		}
		if kind == ReadFast {
			for _, c := range r.Cursors {
				for _, row := range rows {
					if row.Lane == c.Lane && row.Seq > c.After {
						a.Page.Rows = append(a.Page.Rows, row)
					}
				}
			}
		}
		g.RowsRead(r, a, now)
		return true
	}
	return false
}
