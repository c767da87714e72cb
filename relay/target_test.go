package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// TestWhenALaneIsDirectAgain: a lane stays behind while a copy is pending, a
// slow call is under way, the destination is paused, the backlog has rows of
// the lane, or the check began before the last copy was committed.
func TestWhenALaneIsDirectAgain(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change   func(tg *target, l *targetLane)
		occupied []int
		direct   bool
	}{
		"nothing is pending":       {func(*target, *targetLane) {}, nil, true},
		"another lane has rows":    {func(*target, *targetLane) {}, []int{4}, true},
		"the lane has rows":        {func(*target, *targetLane) {}, []int{3}, false},
		"a copy is pending":        {func(_ *target, l *targetLane) { l.divert(9) }, nil, false},
		"a slow call is under way": {func(_ *target, l *targetLane) { l.slow++ }, nil, false},
		"it is paused":             {func(tg *target, _ *targetLane) { tg.pausedAt = now }, nil, false},
		"the check began earlier":  {func(_ *target, l *targetLane) { l.copied = now }, nil, false},
	} {
		cfg, err := Config{}.complete()
		if err != nil {
			t.Fatal(err)
		}
		d, err := Destination{Name: "d", Sink: answers{nil}}.complete(cfg)
		if err != nil {
			t.Fatal(err)
		}
		e := newEngineTo(database{Relay: &hubOnly{}}, []Destination{d}, cfg)
		tg := e.targets[0]
		began := now.Add(-time.Second)
		l := &targetLane{lease: driver.Lease{Lane: 3}, copied: began.Add(-time.Second)}
		tg.lanes[3] = l
		tg.pausedAt = now // so that the ledger does not have the lane
		tg.fallBehind(l, "test", now)
		tg.pausedAt = time.Time{}
		c.change(tg, l)
		tg.checked(c.occupied, began, now)
		if l.behind == c.direct {
			t.Errorf("%s: behind %v, want %v", name, l.behind, !c.direct)
		}
	}
}

// TestCopies: the first pending seq is known whatever the order of additions
// and removals.
func TestCopies(t *testing.T) {
	var c copies
	for _, seq := range []int64{5, 3, 9, 0, 3} {
		c.add(seq)
	}
	for _, step := range []struct{ remove, first int64 }{{0, 3}, {9, 3}, {3, 5}, {7, 5}} {
		c.remove(step.remove)
		if got := c.first(); got != step.first {
			t.Errorf("without %d the first is %d, want %d", step.remove, got, step.first)
		}
	}
	c.remove(5)
	if got := c.first(); got < 1<<62 {
		t.Errorf("the first of none is %d", got)
	}
}
