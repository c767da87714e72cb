package admin_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// bring sends counts with a heartbeat: of one delivery per row, at minutes
// before a time.
func bring(t *testing.T, roles driver.Roles[*memstore.Tx], now time.Time, rows ...driver.RollupRow) {
	t.Helper()
	for i := range rows {
		rows[i].Minute += driver.MinuteOf(now)
		rows[i].Source = waybill.NewID()
	}
	n := store.Node{ID: waybill.NewID(), Relay: "relay", Rollup: driver.EncodeRollup(rows)}
	if _, err := roles.Relay.Heartbeat(t.Context(), n, time.Hour); err != nil {
		t.Fatal(err)
	}
}

func at(minute int64, destination, kind string, delivered, failed, dead int64) driver.RollupRow {
	return driver.RollupRow{
		Minute: minute, Destination: destination, Type: kind, RollupCounts: driver.RollupCounts{Delivered: delivered, Failed: failed, Dead: dead},
	}
}

// TestThroughput: results are summed up by steps, which are whole hours if the
// first one is more than a day ago.
func TestThroughput(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	bring(t, db.Driver(), now, at(-5, "a", "x", 1, 2, 3), at(-5, "a", "y", 10, 0, 0), at(-5, "b", "x", 100, 0, 0), at(-30*60, "a", "x", 1000, 0, 0))
	sum := func(f admin.ThroughputFilter) (all admin.Results, steps int, step time.Duration) {
		t.Helper()
		got, err := ops.Throughput(t.Context(), f)
		if err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		if got.Since.After(now.Add(-time.Hour+2*time.Minute)) || got.Until.Before(now) || got.Now.Before(now.Add(-time.Second)) {
			t.Errorf("%+v: from %v to %v at %v", f, got.Since, got.Until, got.Now)
		}
		for _, r := range got.Rows {
			all.Add(r.RollupCounts)
			if r.At.Sub(time.Unix(0, 0))%got.Step != 0 || r.At.Before(got.Since) || !r.At.Before(got.Until) {
				t.Errorf("%+v: a step of %v begins at %v", f, got.Step, r.At)
			}
		}
		return all, len(got.Rows), got.Step
	}
	for name, c := range map[string]struct {
		f     admin.ThroughputFilter
		want  admin.Results
		steps int
		step  time.Duration
	}{
		"the last hour":  {admin.ThroughputFilter{}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 2, time.Minute},
		"each type":      {admin.ThroughputFilter{ByType: true}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 3, time.Minute},
		"a destination":  {admin.ThroughputFilter{Destination: "a"}, admin.Results{Delivered: 11, Failed: 2, Dead: 3}, 1, time.Minute},
		"a type":         {admin.ThroughputFilter{Type: "y"}, admin.Results{Delivered: 10}, 1, time.Minute},
		"seven minutes":  {admin.ThroughputFilter{Step: 7 * time.Minute}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 2, 7 * time.Minute},
		"less":           {admin.ThroughputFilter{Step: 90 * time.Second}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 2, 2 * time.Minute},
		"ten hours":      {admin.ThroughputFilter{Since: now.Add(-10 * time.Hour)}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 2, 5 * time.Minute},
		"two days":       {admin.ThroughputFilter{Since: now.Add(-48 * time.Hour)}, admin.Results{Delivered: 1111, Failed: 2, Dead: 3}, 3, time.Hour},
		"older, minutes": {admin.ThroughputFilter{Since: now.Add(-25 * time.Hour), Step: time.Minute}, admin.Results{Delivered: 111, Failed: 2, Dead: 3}, 2, time.Hour},
	} {
		if got, steps, step := sum(c.f); got != c.want || steps != c.steps || step != c.step {
			t.Errorf("%s: %+v in %d steps of %v, want %+v in %d of %v", name, got, steps, step, c.want, c.steps, c.step)
		}
	}
	for name, f := range map[string]admin.ThroughputFilter{
		"the end before the begin": {Since: now, Until: now.Add(-time.Hour)}, "too many steps": {Since: now.Add(-365 * 24 * time.Hour)},
	} {
		if _, err := ops.Throughput(t.Context(), f); !errors.Is(err, admin.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// TestRecentThroughput: the results of the last minute whose counts have
// arrived, and of the hour that ends with it.
func TestRecentThroughput(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ops.RecentThroughput(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("without results: %+v, %v", got, err)
	}
	// The last minute ended ten seconds ago, or earlier. The test repeats if
	// that changes meanwhile.
	for {
		now := time.Now().Add(-10 * time.Second)
		bring(t, db.Driver(), now, at(0, "a", "x", 1, 0, 0), at(-1, "a", "x", 2, 1, 0), at(-1, "b", "x", 4, 0, 1), at(-60, "a", "y", 8, 0, 0), at(-61, "a", "x", 16, 0, 0))
		got, err := ops.RecentThroughput(t.Context())
		if driver.MinuteOf(time.Now().Add(-10*time.Second)) != driver.MinuteOf(now) {
			if _, err := db.Driver().Rollups.PurgeRollups(t.Context(), 0, 100); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want := []admin.RecentResults{
			{Destination: "a", Minute: admin.Results{Delivered: 2, Failed: 1}, Hour: admin.Results{Delivered: 10, Failed: 1}},
			{Destination: "b", Minute: admin.Results{Delivered: 4, Dead: 1}, Hour: admin.Results{Delivered: 4, Dead: 1}},
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the results are %+v, %v; want %+v", got, err, want)
		}
		return
	}
}

// TestThroughputWithoutCounts: a store without the role works without counts.
func TestThroughputWithoutCounts(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	roles := db.Driver()
	roles.Rollups = nil
	ops, err := admin.NewOutbox(roles, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ops.Throughput(t.Context(), admin.ThroughputFilter{})
	_, recent := ops.RecentThroughput(t.Context())
	if !errors.Is(err, admin.ErrNoThroughput) || !errors.Is(recent, admin.ErrNoThroughput) {
		t.Errorf("Throughput: %v, RecentThroughput: %v; want ErrNoThroughput", err, recent)
	}
}
