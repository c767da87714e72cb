package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestDefaults checks the defaults that the documentation names.
func TestDefaults(t *testing.T) {
	c, err := Config{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	for name, same := range map[string]bool{
		"Name": c.Name == "relay", "Workers": c.Workers == 4, "BatchSize": c.BatchSize == 500,
		"HotQueue": c.HotQueue == 1000, "ColdQueue": c.ColdQueue == 2000, "MaxBytes": c.MaxBytes == 32<<20, "MaxAttempts": c.MaxAttempts == 10,
		"BackoffBase": c.BackoffBase == 200*time.Millisecond, "BackoffMax": c.BackoffMax == time.Minute,
		"Lease": c.Lease == 15*time.Second, "Heartbeat": c.Heartbeat == 5*time.Second,
		"PollInterval": c.PollInterval == 2*time.Second, "Linger": c.Linger == 2*time.Millisecond,
		"SweepInterval": c.SweepInterval == time.Second, "DrainTimeout": c.DrainTimeout == 5*time.Second,
		"HistoryRetention": c.HistoryRetention == 7*24*time.Hour, "DeadRetention": c.DeadRetention == 0, "OnDead": c.OnDead == Continue,
		"PurgeInterval": c.PurgeInterval == time.Hour, "PurgeBatchSize": c.PurgeBatchSize == 500, "UnknownGrace": c.UnknownGrace == 0,
	} {
		if !same {
			t.Errorf("the default of %s is not what the documentation says: %+v", name, c)
		}
	}
}

// TestConfigErrors: the error of New lists every invalid field, in the order of
// the fields.
func TestConfigErrors(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(db, SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), Config{
		Name: strings.Repeat("x", 256), Workers: -1, BatchSize: -2, HotQueue: -1, ColdQueue: -3, MaxAttempts: -1, BackoffBase: -4, BackoffMax: -5,
		BackoffSeries: []time.Duration{0, -6}, UnknownGrace: -7, OnDead: 7, DeliverTimeout: -8, Lease: -9, Heartbeat: -10, PollInterval: -11,
		Linger: -1, SweepInterval: -12, DrainTimeout: -1, HistoryRetention: -1, DeadRetention: -13, PurgeInterval: -1, PurgeBatchSize: -14,
	})
	want := `relay: Config.Name: 256 bytes, at most 255
Config.Workers: -1 is negative
Config.BatchSize: -2 is negative
Config.ColdQueue: -3 is negative
Config.BackoffBase: -4ns is negative
Config.BackoffMax: -5ns is negative
Config.BackoffSeries[1]: -6ns is negative
Config.UnknownGrace: -7ns is negative
Config.OnDead: 7 is neither Continue nor Block
Config.DeliverTimeout: -8ns is negative
Config.Lease: -9ns is negative
Config.Heartbeat: -10ns is negative
Config.PollInterval: -11ns is negative
Config.SweepInterval: -12ns is negative
Config.DeadRetention: -13ns is negative
Config.PurgeBatchSize: -14 is negative`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	for want, cfg := range map[string]Config{
		"Config.BackoffBase: 1m1s is more than Config.BackoffMax, 1m0s":   {BackoffBase: 61 * time.Second},
		"Config.BackoffBase: 200ms is more than Config.BackoffMax, 199ms": {BackoffMax: 199 * time.Millisecond},
		"Config.BackoffMax: -1ns is negative":                             {BackoffMax: -1},
		"Config.Heartbeat: 2s is more than a third of Config.Lease, 3s":   {Lease: 3 * time.Second, Heartbeat: 2 * time.Second},
		"Config.Lease: -1ns is negative":                                  {Lease: -1},
	} {
		if _, err := cfg.complete(); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
	if _, err := New(db, nil, Config{}); err == nil {
		t.Error("New accepted a nil sink")
	}
	if _, err := New[any](nil, SinkFunc(nil), Config{}); err == nil {
		t.Error("New accepted a nil store")
	}
	if c, err := (Config{Lease: 3 * time.Second}).complete(); err != nil || c.Heartbeat != time.Second {
		t.Errorf("with a lease of 3 s the heartbeat is %v (%v), want 1 s", c.Heartbeat, err)
	}
}

// TestBackoff: min(max, base·2^(n−1)) with jitter 0.5 to 1.5, at most max after
// jitter; a series without jitter.
func TestBackoff(t *testing.T) {
	b := delays{base: 200 * time.Millisecond, max: time.Minute}
	for n, want := range map[int]time.Duration{
		0: 200 * time.Millisecond, 1: 200 * time.Millisecond, 2: 400 * time.Millisecond, 5: 3200 * time.Millisecond,
		9: 51200 * time.Millisecond, 10: time.Minute, 64: time.Minute, 1 << 30: time.Minute,
	} {
		low, high := time.Hour, time.Duration(0)
		for range 2000 {
			d := b.after(n)
			low, high = min(low, d), max(high, d)
		}
		if low < want/2 || high > min(want*3/2, b.max) {
			t.Errorf("after failure %d: between %v and %v, want between %v and %v", n, low, high, want/2, min(want*3/2, b.max))
		}
		if low > want*6/10 || high < min(want*14/10, b.max) {
			t.Errorf("after failure %d: between %v and %v does not use the range around %v", n, low, high, want)
		}
	}
	s := delays{base: time.Hour, max: time.Hour, series: []time.Duration{1, 5, 30}}
	for n, want := range map[int]time.Duration{1: 1, 2: 5, 3: 30, 4: 30, 1000: 30} {
		if got := s.after(n); got != want {
			t.Errorf("series after failure %d: %v, want %v", n, got, want)
		}
	}
}
