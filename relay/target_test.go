package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store"
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
		"nothing is pending":      {func(*target, *targetLane) {}, nil, true},
		"another lane has rows":   {func(*target, *targetLane) {}, []int{4}, true},
		"the lane has rows":       {func(*target, *targetLane) {}, []int{3}, false},
		"a copy is pending":       {func(_ *target, l *targetLane) { l.divert(9) }, nil, false},
		"a call is under way":     {func(_ *target, l *targetLane) { l.calls++ }, nil, false},
		"it is paused":            {func(tg *target, _ *targetLane) { tg.pausedAt = now }, nil, false},
		"the check began earlier": {func(_ *target, l *targetLane) { l.copied = now }, nil, false},
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

// TestCopiesForgetWhatIsCopied: while a destination is paused, nothing asks for
// the first pending copy, and the copies that were made use no memory.
func TestCopiesForgetWhatIsCopied(t *testing.T) {
	var c copies
	for seq := int64(1); seq <= 1000; seq++ {
		c.add(seq)
		if seq > 10 {
			c.remove(seq - 10)
		}
	}
	if len(c.order) != 10 || len(c.pending) != 10 {
		t.Errorf("%d and %d seqs are remembered, want 10", len(c.order), len(c.pending))
	}
}

// TestACheckBeforeAPause: a check that began before this node paused a
// destination does not resume it.
func TestACheckBeforeAPause(t *testing.T) {
	cfg, err := Config{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Destination{Name: "d", Sink: answers{nil}}.complete(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	e := newEngineTo(database{Relay: &hubOnly{}, backlogs: noBacklogs{}}, []Destination{d}, cfg)
	tg := e.targets[0]
	registry := []store.Destination{{Number: 1, Name: "d"}}
	e.register(registry, now)
	e.pauseTarget(tg, errors.New("no"), now)
	e.register(registry, now)
	if !tg.isPaused() {
		t.Error("the destination is resumed before its pause is in the tables")
	}
	e.check.pauses = nil // it is in the tables, and an operator has resumed the destination
	e.register(registry, now)
	if tg.isPaused() {
		t.Error("the destination is paused after an operator resumed it")
	}
}

// noBacklogs are backlogs that nothing reads.
type noBacklogs struct{ driver.Backlogs }

func (noBacklogs) Backlog(int) driver.Backlog { return nil }
