package main

import (
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "42 (a (strange) name) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 20 10 20 0 1 0 100 1000 10 18446744073709551615"
	p, err := parseStat([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if want := (process{parent: 7, own: 2 * time.Second, children: 300 * time.Millisecond}); p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
	for _, bad := range []string{"", "42 (x) S 7", "42 (x) S y 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestParseKB(t *testing.T) {
	text := "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"
	if got := parseKB(text, "VmHWM:"); got != 2<<20 {
		t.Errorf("VmHWM is %d", got)
	}
	if got := parseKB(text, "VmSwap:"); got != 0 {
		t.Errorf("VmSwap is %d", got)
	}
}

func TestParseMachine(t *testing.T) {
	text := "cpu  100 20 30 5000 600 7 3 1 50 0\ncpu0 1 2 3\n"
	if got, want := parseMachine(text), 1600*time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := parseMachine("what"); got != 0 {
		t.Errorf("got %v of nothing", got)
	}
}

func TestOthers(t *testing.T) {
	if got := others(gauge{}, time.Second); got != 0 {
		t.Errorf("unknown is %v", got)
	}
	busy := gauge{machine: 100 * time.Second, server: time.Second, own: time.Second}
	if got := others(busy, time.Second); got <= 0 {
		t.Errorf("a busy machine is %v", got)
	}
	if got := others(gauge{machine: time.Second, server: time.Second, own: time.Second}, time.Second); got != 0 {
		t.Errorf("less than nothing is %v", got)
	}
}
