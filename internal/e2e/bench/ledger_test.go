package main

import (
	"encoding/json"
	"sync"
	"testing"
	"time"
)

func TestNumberedPayload(t *testing.T) {
	for _, n := range []int{0, 7, 99_999, stuckNumber} {
		p := numbered(n)
		if len(p) != payloadSize || !json.Valid(p) {
			t.Errorf("payload of %d: %d bytes, valid JSON: %v", n, len(p), json.Valid(p))
		}
		if got := numberOf(p); got != n {
			t.Errorf("the number of %d's payload is %d", n, got)
		}
		args := newRiverArgs(n)
		if again, err := json.Marshal(args); err != nil || string(again) != string(p) {
			t.Errorf("River's arguments of %d are another payload: %s, %v", n, again, err)
		}
		if got := numberOf([]byte(args.N)); got != n {
			t.Errorf("the number of River's %d is %d", n, got)
		}
	}
	for text, want := range map[string]int{
		`{"n": "0000000042", "note": "x"}`: 42, // as formatted by jsonb
		`{"note":"x"}`:                     -1,
		``:                                 -1,
		`{"n":"12a"}`:                      -1,
	} {
		if got := numberOf([]byte(text)); got != want {
			t.Errorf("the number of %s is %d, want %d", text, got, want)
		}
	}
}

func TestLedgerFindsWhatIsWrong(t *testing.T) {
	const n = 3 * aggregates
	l := newLedger(n, 0)
	l.note(-1)
	l.note(n) // of no turn
	for i := aggregates; i < n; i++ {
		l.note(i)
	}
	l.note(5) // after aggregates+5, which is of the same aggregate
	l.note(5)
	select {
	case <-l.all:
		t.Fatal("all were seen before all were there")
	default:
	}
	for i := range aggregates {
		if i != 5 {
			l.note(i)
		}
	}
	select {
	case <-l.all:
	default:
		t.Fatalf("%d of %d, and not all", l.count.Load(), l.want)
	}
	if l.twice.Load() != 1 || l.inverted.Load() != aggregates {
		t.Errorf("twice %d, want 1; out of order %d, want %d", l.twice.Load(), l.inverted.Load(), aggregates)
	}
}

func TestLedgerInOrder(t *testing.T) {
	l := newLedger(2*aggregates, 0)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 2 * aggregates {
				if i%aggregates%4 == worker { // an aggregate has one worker
					l.handle(numbered(i))
				}
			}
		})
	}
	wg.Wait()
	<-l.all
	l.stop()
	if l.twice.Load() != 0 || l.inverted.Load() != 0 {
		t.Errorf("twice %d, out of order %d", l.twice.Load(), l.inverted.Load())
	}
	if l.first.Load() <= 0 || l.took() < time.Duration(l.first.Load()) {
		t.Errorf("the first after %v, all after %v", time.Duration(l.first.Load()), l.took())
	}
}

func TestLedgerOfOne(t *testing.T) {
	l := newLedger(1, 0)
	l.note(0)
	<-l.all
	if l.first.Load() == 0 {
		t.Error("the only event is not the first")
	}
}

func TestLatencies(t *testing.T) {
	s := newStamps(6)
	for n, times := range [][2]int64{{1, 2}, {100, 400}, {100, 90}, {50, 0}, {0, 0}, {100, 200}} {
		s.committed[n].Store(times[0])
		s.handled[n].Store(times[1])
	}
	got, late := s.latencies(1, 6, 1050)
	want := []time.Duration{0, 100, 300, 1000}
	if late != 1 || len(got) != len(want) {
		t.Fatalf("latencies %v, late %d; want %v, 1", got, late, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("latencies %v, want %v", got, want)
		}
	}
}

func TestStampsCountRepeats(t *testing.T) {
	s := newStamps(2)
	for _, n := range []int{0, 1, 1, 7} {
		s.handle(numbered(n))
	}
	if s.total.Load() != 2 || s.twice.Load() != 1 {
		t.Errorf("total %d, twice %d", s.total.Load(), s.twice.Load())
	}
}
