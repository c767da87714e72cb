package ledger

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestPollsFollowEventsOfOtherProcesses: after an event of another process the
// relay reads four times in close succession, and then, unless a notification
// announced the event, every 10 ms for two seconds.
func TestPollsFollowEventsOfOtherProcesses(t *testing.T) {
	const usual, brief = 16 * time.Millisecond, time.Millisecond
	began := time.Unix(1_000_000, 0)
	for _, woken := range []bool{false, true} {
		c := chase{share: 1}
		now := began
		c.read(1, 1, woken, now)
		for i := range 4 {
			if got := c.pause(usual, brief, now); got != brief || !c.soon {
				t.Errorf("woken %v, after %d empty reads: a pause of %s, want %s", woken, i, got, brief)
			}
			c.read(0, 0, false, now)
		}
		want := 10 * time.Millisecond
		if woken {
			want = usual
		}
		now = began.Add(2*time.Second - 1)
		if got := c.pause(usual, brief, now); got != want || c.soon {
			t.Errorf("woken %v: a pause of %s, want %s", woken, got, want)
		}
		if got := c.pause(2*time.Millisecond, brief, now); got != 2*time.Millisecond {
			t.Errorf("woken %v: a pause of %s, want not more than the usual one", woken, got)
		}
		if got := c.pause(usual, brief, began.Add(2*time.Second)); got != usual {
			t.Errorf("woken %v: a pause of %s after two seconds, want %s", woken, got, usual)
		}
	}
}

// TestEventsOfThisProcessAreNotFollowed: a relay whose own process announces
// three of four events reads as usual, and a read that is faster than an
// announcement counts as announced.
func TestEventsOfThisProcessAreNotFollowed(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var c chase
	for range 100 {
		c.read(100, 24, true, now)
	}
	if got := c.pause(16*time.Millisecond, time.Millisecond, now); got != 16*time.Millisecond {
		t.Errorf("24 %% of other processes: a pause of %s, want the usual one", got)
	}
	for range 100 {
		c.read(100, 26, true, now)
	}
	if got := c.pause(16*time.Millisecond, time.Millisecond, now); got != time.Millisecond {
		t.Errorf("26 %% of other processes: a pause of %s, want a brief one", got)
	}
	c.announcedLate()
	if got := c.pause(16*time.Millisecond, time.Millisecond, now); got != 16*time.Millisecond {
		t.Errorf("announcements came late: a pause of %s, want the usual one", got)
	}
}

// TestAPollFindsForeignEvents: the ledger tells events that were announced from
// those that were not, and reads again soon after the latter, not from the
// beginning.
func TestAPollFindsForeignEvents(t *testing.T) {
	for _, announced := range []bool{false, true} {
		g, now := sweptLedger(0)
		g.cfg = Config{ColdQueue: 100, HotQueue: 100, BatchSize: 100, Linger: 2 * time.Millisecond, PollInterval: time.Second, SweepInterval: time.Second}
		g.window = 100
		for i := range int64(10) {
			row := store.Row{Key: store.Key{Lane: 1, Seq: i + 1, ID: waybill.NewID()}}
			row.Event.ID, row.Event.AggregateType, row.Event.AggregateID = row.ID, "thing", "a"
			if announced {
				g.Announced([]driver.Commit{{Entries: []driver.Entry{{Lane: 1, Event: row.Event}}}}, now)
			}
			r, ok := g.StartRead(ReadFast, now)
			if !ok {
				t.Fatal("no read")
			}
			g.RowsRead(r, Answer{Page: driver.Page{Rows: []store.Row{row}, Now: now}, Took: time.Millisecond}, now)
			now = now.Add(time.Second)
		}
		want := firstPoll
		if !announced {
			want = time.Millisecond // as long as the read took
		}
		last := now.Add(-time.Second)
		if got := g.plan.nextPoll.Sub(last); got != want {
			t.Errorf("announced %v: the next poll after %s, want %s", announced, got, want)
		}
	}
}

// TestPollsSlowDownAfterTheLastEvent: the interval between polls begins to grow
// when the relay has stopped polling every 10 ms, and not before.
func TestPollsSlowDownAfterTheLastEvent(t *testing.T) {
	g, now := sweptLedger(0)
	g.cfg.PollInterval = time.Second
	g.plan.chase = chase{share: 1, unnotified: true, last: now, empty: chaseReads}
	poll := func() {
		g.plan.nextPoll = now
		r, ok := g.StartRead(ReadFast, now)
		if !ok {
			t.Fatal("no read")
		}
		g.RowsRead(r, Answer{Took: time.Millisecond}, now)
	}
	now = g.plan.chase.last.Add(activeTime - 1)
	for range 100 {
		poll()
	}
	if g.plan.interval != 0 {
		t.Errorf("the interval is %s while the relay polls every 10 ms, want 0", g.plan.interval)
	}
	now = g.plan.chase.last.Add(activeTime)
	if poll(); g.plan.interval != firstPoll {
		t.Errorf("the interval is %s afterwards, want %s", g.plan.interval, firstPoll)
	}
}
