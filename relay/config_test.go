package relay

import (
	"context"
	"slices"
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
		"HotQueue": c.HotQueue == 1000, "ColdQueue": c.ColdQueue == 1000, "MaxAttempts": c.MaxAttempts == 10,
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

// TestConfigReportsEveryBadField: one error names all invalid fields.
func TestConfigReportsEveryBadField(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(db, SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), Config{
		Name: strings.Repeat("x", 256), Workers: -1, BatchSize: -1, ColdQueue: -1, BackoffBase: -1, BackoffMax: -1,
		BackoffSeries: []time.Duration{-1}, Lease: -1, PollInterval: -1, SweepInterval: -1, PurgeBatchSize: -1,
		DeadRetention: -1, UnknownGrace: -1, DeliverTimeout: -1, OnDead: 7,
	})
	if err == nil {
		t.Fatal("New accepted invalid fields")
	}
	for _, field := range []string{
		"Name", "Workers", "BatchSize", "ColdQueue", "BackoffBase", "BackoffMax", "BackoffSeries[0]", "Lease", "PollInterval",
		"SweepInterval", "PurgeBatchSize", "DeadRetention", "UnknownGrace", "DeliverTimeout", "OnDead",
	} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	// The order of the fields is that of the validation, at every call.
	order := []int{strings.Index(err.Error(), "DeadRetention:"), strings.Index(err.Error(), "UnknownGrace:"), strings.Index(err.Error(), "DeliverTimeout:")}
	if !slices.IsSorted(order) {
		t.Errorf("the errors are not in order: %v", err)
	}
	if _, err := New(db, nil, Config{}); err == nil {
		t.Error("New accepted a nil sink")
	}
	if _, err := New[any](nil, SinkFunc(nil), Config{}); err == nil {
		t.Error("New accepted a nil store")
	}
	if _, err := (Config{Lease: 3 * time.Second, Heartbeat: 2 * time.Second}).complete(); err == nil {
		t.Error("a heartbeat that is longer than a third of the lease was accepted")
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
