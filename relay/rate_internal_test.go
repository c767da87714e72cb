package relay

import (
	"testing"
	"time"
)

// rateStep is what happens to a rate at a time, and its limit after that.
type rateStep struct {
	at    time.Duration
	what  string
	limit float64
}

func playRate(t *testing.T, r *rate, steps []rateStep) {
	t.Helper()
	began := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, s := range steps {
		now := began.Add(s.at)
		switch s.what {
		case "slow":
			r.slowDown(now)
		case "ok":
			r.accepted(now)
		default:
			t.Fatal(s.what)
		}
		if r.limit != s.limit {
			t.Fatalf("after %s at %v the limit is %v, want %v", s.what, s.at, r.limit, s.limit)
		}
	}
}

// TestRateAdapts: the limit halves when the destination asks for fewer events,
// once a second, down to one event per second, and grows by a twentieth of the
// rate per second with an accepted event.
func TestRateAdapts(t *testing.T) {
	r := newRate(40)
	playRate(t, r, []rateStep{
		{0, "ok", 40}, // nothing to recover from
		{time.Second, "slow", 20},
		{1100 * time.Millisecond, "slow", 20}, // an answer to a call from before
		{2 * time.Second, "ok", 20},           // less than a second after the last refusal
		{2100 * time.Millisecond, "ok", 22},
		{2500 * time.Millisecond, "ok", 22},
		{3100 * time.Millisecond, "ok", 24},
		{3200 * time.Millisecond, "slow", 12},
		{4 * time.Second, "slow", 12},
		{5 * time.Second, "slow", 6},
		{6 * time.Second, "slow", 3},
		{7 * time.Second, "slow", 1.5},
		{8 * time.Second, "slow", 1},
		{9 * time.Second, "slow", 1},
	})
	steps := make([]rateStep, 0, 20)
	for i := range 19 {
		steps = append(steps, rateStep{time.Duration(10+i) * time.Second, "ok", 1 + 2*float64(i+1)})
	}
	playRate(t, r, append(steps, rateStep{29 * time.Second, "ok", 40}))
	if r.top != 0 {
		t.Errorf("the destination still adapts to %v", r.top)
	}
}

// TestRateOfADestinationWithoutOne: the answer of a destination without a limit
// begins a limit of half of what the destination received in a second, which
// ends when it has grown to the whole.
func TestRateOfADestinationWithoutOne(t *testing.T) {
	began := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	r := newRate(0)
	if n := r.room(100, began); n != 100 {
		t.Fatalf("without a limit %d of 100 events pass", n)
	}
	r.giveBack(20)
	now := began.Add(1500 * time.Millisecond)
	if n := r.room(30, now); n != 30 {
		t.Fatalf("without a limit %d of 30 events pass", n)
	}
	if limit, first := r.slowDown(now); limit != 40 || !first {
		t.Fatalf("the limit is %v, want half of the 80 events of the second before", limit)
	}
	if n := r.room(100, now); n != 0 {
		t.Errorf("%d events pass at once", n)
	}
	if next := r.next(now); next.Sub(now) != 25*time.Millisecond {
		t.Errorf("the next event passes after %v, want 25 ms", next.Sub(now))
	}
	if n := r.room(100, now.Add(500*time.Millisecond)); n != 20 {
		t.Errorf("%d events pass in half a second, want 20", n)
	}
	for i := range 10 {
		if done := r.accepted(now.Add(time.Duration(i+1) * time.Second)); done != (i == 9) {
			t.Fatalf("after %d seconds the limit has ended: %v; it is %v", i+1, done, r.limit)
		}
	}
	if n := r.room(1000, now.Add(11*time.Second)); n != 1000 {
		t.Errorf("when the limit has ended %d of 1000 events pass", n)
	}
}

// TestRateBelowTheFloor: a rate below one event per second stays as it is.
func TestRateBelowTheFloor(t *testing.T) {
	playRate(t, newRate(0.5), []rateStep{{0, "slow", 0.5}, {time.Second, "ok", 0.5}})
}
