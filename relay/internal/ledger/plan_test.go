package ledger

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// TestBatchDelay: the higher the rate, and the longer statements take, the
// longer the relay pauses between them, up to a maximum.
func TestBatchDelay(t *testing.T) {
	const pause, ms = time.Millisecond, pace(time.Millisecond)
	for _, c := range []struct {
		what          string
		rate          float64
		reads, writes pace
		linger        time.Duration
		want          time.Duration
	}{
		{"low rate", calmRate, 2 * ms, 3 * ms, 10 * time.Millisecond, pause},
		{"half of the range", (calmRate + busyRate) / 2, ms, ms, 10 * time.Millisecond, pause + (restFactor*2*time.Millisecond-pause)/2},
		{"high rate", busyRate, ms, 2 * ms, 10 * time.Millisecond, restFactor * 3 * time.Millisecond},
		{"higher rate", 10 * busyRate, ms, 2 * ms, 10 * time.Millisecond, restFactor * 3 * time.Millisecond},
		{"the database is slow", busyRate, 200 * ms, 300 * ms, 10 * time.Millisecond, maxPatient * 10 * time.Millisecond},
		{"statements take no time", busyRate, 0, 0, 10 * time.Millisecond, pause},
		{"no Linger", busyRate, ms, ms, -1, pause},
	} {
		g := &Ledger{cfg: Config{Linger: c.linger}, plan: plan{rate: c.rate, reads: c.reads, writes: c.writes}}
		if got := g.batchDelay(pause); got != c.want {
			t.Errorf("%s: the delay is %v, want %v", c.what, got, c.want)
		}
	}
}

// TestPaceOfStatements: the relay measures how long its statements take.
func TestPaceOfStatements(t *testing.T) {
	g := &Ledger{}
	g.RowsRead(Read{Kind: ReadFast}, Answer{Took: 8 * time.Millisecond}, time.Now())
	g.Settled(Settlement{}, driver.Settled{}, 16*time.Millisecond, time.Now())
	if g.plan.reads != pace(time.Millisecond) || g.plan.writes != pace(2*time.Millisecond) {
		t.Errorf("reads take %v and settlements %v, want an eighth of the first", time.Duration(g.plan.reads), time.Duration(g.plan.writes))
	}
}

// TestReadBehindSettle: at high rates, a read that would return rows that are
// about to be settled follows their settlement, but does not wait for it
// forever.
func TestReadBehindSettle(t *testing.T) {
	const pause = 10 * time.Millisecond
	at := time.Now() // when the read is wanted
	for _, c := range []struct {
		what     string
		rate     float64
		settling bool
		// since is the age of the pending outcomes, relative to at; the
		// settlement waits as long as a read.
		since time.Duration
		want  time.Duration // after at
	}{
		{"low rate", calmRate, true, 0, 0},
		{"no settlement is pending", busyRate, false, -1, 0},
		{"a settlement is under way", busyRate, true, -1, pause},
		{"one is due just after the read", busyRate, false, time.Millisecond - pause, time.Millisecond},
		{"one is due later", busyRate, false, pause, 0},
	} {
		g := &Ledger{
			cfg: Config{Linger: pause, BatchSize: 500, ColdQueue: 1000}, window: 1, lanes: owned{list: []*lane{{open: true, scan: scan{woken: true}}}}, settling: c.settling,
			horizon: horizon{next: at}, plan: plan{rate: c.rate, lastFast: at.Add(-pause), fastTook: pause},
		}
		if c.since != -1 {
			g.pending = pending{list: []outcome{{it: &Item{}}}, since: at.Add(c.since)}
		}
		if got := g.wishFast().at.Sub(at); got != c.want {
			t.Errorf("%s: the read waits for %v, want %v", c.what, got, c.want)
		}
	}
}
