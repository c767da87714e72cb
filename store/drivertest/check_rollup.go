package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// rollupChecks check the counts that heartbeats bring.
func rollupChecks[T any]() []check[T] {
	return []check[T]{
		{row: "rollups", name: "kept with heartbeats", run: keepsRollups[T]},
		{row: "rollups", name: "sums", run: sumsRollups[T]},
		{row: "rollups", name: "texts", run: textsOfRollups[T]},
		{row: "rollups", name: "minutes merge into hours", fresh: true, run: mergesRollups[T]},
		{row: "rollups", name: "concurrent merges", fresh: true, run: mergesConcurrently[T]},
		{row: "rollups", name: "purge", fresh: true, run: purgesRollups[T]},
	}
}

// bring sends rows with a heartbeat.
func (b *env[T]) bring(ctx context.Context, t tb, db driver.Lanes, n store.Node, rows ...driver.RollupRow) {
	t.Helper()
	n.Rollup = driver.EncodeRollup(rows)
	for _, got := range b.beat(ctx, t, db, n, defaultLease).Nodes {
		if got.Rollup != "" {
			t.Errorf("a heartbeat returned the counts %q of node %s", got.Rollup, got.ID)
		}
	}
}

// counted returns a row of counts at a destination of this check.
func (b *env[T]) counted(minute int64, source waybill.ID, destination, kind string, delivered, failed, dead int64) driver.RollupRow {
	return driver.RollupRow{
		Minute: minute, Source: source, Destination: b.unique(destination), Type: kind,
		RollupCounts: driver.RollupCounts{Delivered: delivered, Failed: failed, Dead: dead},
	}
}

// wantRollups asserts the counts of this check that match, in the form "minute
// destination type delivered failed dead", with minutes after a begin.
func (b *env[T]) wantRollups(ctx context.Context, t tb, when string, begin int64, f driver.RollupFilter, want ...string) {
	t.Helper()
	all, err := b.DB.Rollups.ListRollups(ctx, f)
	if err != nil {
		t.Fatalf("ListRollups %s: %v", when, err)
	}
	var got []string
	for _, r := range all {
		name, mine := strings.CutPrefix(r.Destination, b.unique(""))
		if !mine {
			continue
		}
		if r.At.Location() != time.UTC {
			t.Errorf("%s, the time %v is not UTC", when, r.At)
		}
		got = append(got, fmt.Sprintf("%d %s %s %d %d %d", driver.MinuteOf(r.At)-begin, name, r.Type, r.Delivered, r.Failed, r.Dead))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s, the counts are %q, want %q", when, got, want)
	}
}

// keepsRollups: a row has the highest counts that heartbeats brought, in any
// order and of any node.
func keepsRollups[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	minute := driver.MinuteOf(b.now(ctx, t))
	byType := driver.RollupFilter{ByType: true}
	first, other := waybill.NewID(), waybill.NewID()
	want := func(when string, want ...string) {
		t.Helper()
		b.wantRollups(ctx, t, when, minute, byType, want...)
	}
	b.bring(ctx, t, b.DB.Relay, one)
	want("without counts")
	b.bring(ctx, t, b.DB.Relay, one, b.counted(minute, first, "a", "x", 3, 2, 1), b.counted(minute, first, "a", "y", 1, 0, 0))
	want("after a heartbeat", "0 a x 3 2 1", "0 a y 1 0 0")
	b.bring(ctx, t, b.DB.Relay, one, b.counted(minute, first, "a", "x", 3, 2, 1), b.counted(minute, first, "a", "y", 1, 0, 0))
	want("after its repetition", "0 a x 3 2 1", "0 a y 1 0 0")
	b.bring(ctx, t, b.DB.Relay, one, b.counted(minute, first, "a", "x", 9, 5, 4))
	b.bring(ctx, t, b.DB.Relay, one, b.counted(minute, first, "a", "x", 4, 3, 2))
	want("after a late heartbeat", "0 a x 9 5 4", "0 a y 1 0 0")
	b.bring(ctx, t, b.second().Relay, two, b.counted(minute, other, "a", "x", 100, 0, 0), b.counted(minute, other, "b", "x", 7, 0, 0))
	want("of two nodes", "0 a x 109 5 4", "0 a y 1 0 0", "0 b x 7 0 0")
	// Without a heartbeat for its node before.
	three := store.Node{ID: waybill.NewID(), Relay: relayName}
	b.laterDo(func(ctx context.Context) error { return b.DB.Relay.Leave(ctx, three) })
	b.bring(ctx, t, b.DB.Relay, three, b.counted(minute+1, other, "b", "x", 1, 0, 0))
	want("with the first heartbeat of a node", "0 a x 109 5 4", "0 a y 1 0 0", "0 b x 7 0 0", "1 b x 1 0 0")
	rejected := store.Node{ID: waybill.NewID(), Relay: "another relay", Rollup: driver.EncodeRollup([]driver.RollupRow{b.counted(minute, other, "c", "x", 1, 0, 0)})}
	if _, err := b.DB.Relay.Heartbeat(ctx, rejected, defaultLease); !errors.Is(err, waybill.ErrOtherRelay) {
		t.Errorf("a heartbeat of another relay returned %v", err)
	}
	want("after a rejected heartbeat", "0 a x 109 5 4", "0 a y 1 0 0", "0 b x 7 0 0", "1 b x 1 0 0")
}

// sumsRollups selects and sums counts of three minutes.
func sumsRollups[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	hour := hoursAgo(b.now(ctx, t), 1)
	source := waybill.NewID()
	x, y := b.unique("x"), b.unique("y")
	b.bring(ctx, t, b.DB.Relay, n,
		b.counted(hour+59, source, "a", x, 1, 0, 0), b.counted(hour+59, source, "b", x, 2, 0, 0),
		b.counted(hour+60, source, "a", x, 4, 1, 0), b.counted(hour+60, source, "a", y, 8, 0, 1), b.counted(hour+60, source, "a", "", 16, 0, 0),
		b.counted(hour+61, source, "b", y, 1<<40, 0, 0))
	at := func(minute int64) time.Time { return driver.TimeOfMinute(hour + minute) }
	for name, c := range map[string]struct {
		f    driver.RollupFilter
		want []string
	}{
		"all":           {driver.RollupFilter{}, []string{"59 a  1 0 0", "59 b  2 0 0", "60 a  28 1 1", "61 b  1099511627776 0 0"}},
		"since":         {driver.RollupFilter{Since: at(60)}, []string{"60 a  28 1 1", "61 b  1099511627776 0 0"}},
		"since later":   {driver.RollupFilter{Since: at(60).Add(1)}, []string{"61 b  1099511627776 0 0"}},
		"until":         {driver.RollupFilter{Until: at(60)}, []string{"59 a  1 0 0", "59 b  2 0 0"}},
		"until later":   {driver.RollupFilter{Until: at(60).Add(time.Second)}, []string{"59 a  1 0 0", "59 b  2 0 0", "60 a  28 1 1"}},
		"a destination": {driver.RollupFilter{Destination: b.unique("a")}, []string{"59 a  1 0 0", "60 a  28 1 1"}},
		"a type":        {driver.RollupFilter{Type: x, ByType: true}, []string{"59 a " + x + " 1 0 0", "59 b " + x + " 2 0 0", "60 a " + x + " 4 1 0"}},
		"both":          {driver.RollupFilter{Type: y, Destination: b.unique("b")}, []string{"61 b  1099511627776 0 0"}},
		"two minutes":   {driver.RollupFilter{Step: 2 * time.Minute}, []string{"58 a  1 0 0", "58 b  2 0 0", "60 a  28 1 1", "60 b  1099511627776 0 0"}},
		"an hour":       {driver.RollupFilter{Step: time.Hour}, []string{"0 a  1 0 0", "0 b  2 0 0", "60 a  28 1 1", "60 b  1099511627776 0 0"}},
		"types":         {driver.RollupFilter{Since: at(60), Until: at(61), ByType: true}, []string{"60 a  16 0 0", "60 a " + x + " 4 1 0", "60 a " + y + " 8 0 1"}},
		"nothing":       {driver.RollupFilter{Destination: b.unique("c")}, nil},
	} {
		b.wantRollups(ctx, t, name, hour, c.f, c.want...)
	}
}

// textsOfRollups stores texts that need quotes, and the longest ones, as they
// are: they differ in case and in trailing spaces.
func textsOfRollups[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	minute, source := driver.MinuteOf(b.now(ctx, t)), waybill.NewID()
	var rows []driver.RollupRow
	var want []string
	for _, kind := range []string{` it's "\ %s <b>`, "A", "A ", "a", strings.Repeat("t", 128), "Ünïcode \u2028\u732b\U0001f408"} {
		rows = append(rows, b.counted(minute, source, "", kind, 1, 0, 0))
		want = append(want, fmt.Sprintf("0  %s 1 0 0", kind))
	}
	b.bring(ctx, t, b.DB.Relay, n, rows...)
	b.wantRollups(ctx, t, "with such types", minute, driver.RollupFilter{ByType: true}, want...)
	b.wantRollups(ctx, t, "of the type A", minute, driver.RollupFilter{ByType: true, Type: "A"}, "0  A 1 0 0")
	long := strings.Repeat("d", driver.MaxDestinationName)
	row := driver.RollupRow{Minute: minute, Source: source, Destination: long, Type: b.unique("x"), RollupCounts: driver.RollupCounts{Dead: 1}}
	b.bring(ctx, t, b.DB.Relay, n, row)
	got, err := b.DB.Rollups.ListRollups(ctx, driver.RollupFilter{Destination: long, Type: row.Type})
	if err != nil || len(got) != 1 || got[0].Destination != long || got[0].RollupCounts != row.RollupCounts {
		t.Errorf("the counts of the longest destination are %+v, %v", got, err)
	}
}

// mergesRollups merges minutes of an hour, a few at a time, and minutes that
// arrive later.
func mergesRollups[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	now := b.now(ctx, t)
	hour := hoursAgo(now, 3)
	one, two := waybill.NewID(), waybill.NewID()
	b.bring(ctx, t, b.DB.Relay, n,
		b.counted(hour, one, "a", "x", 1, 0, 0), b.counted(hour, two, "a", "x", 2, 1, 0), b.counted(hour+1, one, "a", "x", 4, 0, 0),
		b.counted(hour+59, one, "a", "x", 8, 0, 1), b.counted(hour+59, one, "a", "y", 16, 0, 0), b.counted(hour+59, one, "b", "x", 32, 0, 0),
		b.counted(hour+60, one, "a", "x", 64, 0, 0), b.counted(hour+3*driver.HourMinutes, one, "a", "x", 128, 0, 0))
	merge := func(before int64, limit, want int) {
		t.Helper()
		if got, err := b.DB.Rollups.MergeRollups(ctx, mergeAge(now, before), limit); err != nil || got != want {
			t.Errorf("MergeRollups of %d before the minute %d merged %d, %v; want %d", limit, before-hour, got, err, want)
		}
	}
	list := func(when string, want ...string) {
		t.Helper()
		b.wantRollups(ctx, t, when, hour, driver.RollupFilter{ByType: true, Until: driver.TimeOfMinute(hour + 2*driver.HourMinutes)}, want...)
	}
	merge(hour, 10, 0)
	merge(hour+60, 0, 0)
	list("before", "0 a x 3 1 0", "1 a x 4 0 0", "59 a x 8 0 1", "59 a y 16 0 0", "59 b x 32 0 0", "60 a x 64 0 0")
	merge(hour+60, 2, 2)
	list("after two rows", "0 a x 3 1 0", "1 a x 4 0 0", "59 a x 8 0 1", "59 a y 16 0 0", "59 b x 32 0 0", "60 a x 64 0 0")
	merge(hour+60, 2, 2)
	merge(hour+60, 10, 2)
	merge(hour+60, 10, 0)
	list("after all", "0 a x 15 1 1", "0 a y 16 0 0", "0 b x 32 0 0", "60 a x 64 0 0")
	b.bring(ctx, t, b.DB.Relay, n, b.counted(hour+2, two, "a", "y", 1, 0, 0))
	merge(hour+60, 10, 1)
	list("after a late minute", "0 a x 15 1 1", "0 a y 17 0 0", "0 b x 32 0 0", "60 a x 64 0 0")
	merge(hour+180, 10, 1)
	list("after another hour", "0 a x 15 1 1", "0 a y 17 0 0", "0 b x 32 0 0", "60 a x 64 0 0")
	b.wantRollups(ctx, t, "of the current hour", hour, driver.RollupFilter{Since: driver.TimeOfMinute(hour + 3*driver.HourMinutes)}, "180 a  128 0 0")
	if _, err := b.DB.Rollups.MergeRollups(ctx, -time.Second, 10); err == nil {
		t.Errorf("MergeRollups accepts a negative age")
	}
}

// hoursAgo returns the first minute of an hour: n hours before the current one.
func hoursAgo(now time.Time, n int64) int64 {
	return (driver.MinuteOf(now)/driver.HourMinutes - n) * driver.HourMinutes
}

// mergeAge returns the age with which, for half an hour from now, rows before
// an hour are merged. The hour may be the current one.
func mergeAge(now time.Time, before int64) time.Duration {
	return max(now.Sub(driver.TimeOfMinute(before).Add(time.Hour/2)), 0)
}

// mergesConcurrently merges on two nodes while a heartbeat brings counts:
// nothing is lost, and nothing counts twice.
func mergesConcurrently[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	now := b.now(ctx, t)
	hour := hoursAgo(now, 3)
	for round := range int64(5) {
		var rows []driver.RollupRow
		for i := range int64(20) {
			rows = append(rows, b.counted(hour+i, waybill.NewID(), "a", "x", 1, 0, 0), b.counted(hour+60+i, waybill.NewID(), "a", "x", 1, 0, 0))
		}
		b.bring(ctx, t, b.DB.Relay, n, rows...)
		var merging sync.WaitGroup
		for _, db := range []driver.Rollups{b.DB.Rollups, b.second().Rollups} {
			merging.Go(func() {
				for range 30 {
					if _, err := db.MergeRollups(ctx, mergeAge(now, hour+120), 3); err != nil {
						t.Errorf("MergeRollups beside another: %v", err)
					}
				}
			})
		}
		b.bring(ctx, t, b.DB.Relay, n, b.counted(hour+180, waybill.NewID(), "b", "x", 1, 0, 0))
		merging.Wait()
		b.wantRollups(ctx, t, "after concurrent merges", hour, driver.RollupFilter{Until: driver.TimeOfMinute(hour + 180)},
			fmt.Sprintf("0 a  %d 0 0", 20*(round+1)), fmt.Sprintf("60 a  %d 0 0", 20*(round+1)))
	}
}

// purgesRollups deletes old rows of minutes and of hours.
func purgesRollups[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	now := b.now(ctx, t)
	hour, source := hoursAgo(now, 5), waybill.NewID()
	b.bring(ctx, t, b.DB.Relay, n, b.counted(hour, source, "a", "x", 1, 0, 0), b.counted(hour+1, source, "a", "x", 1, 0, 0), b.counted(hour+60, source, "a", "x", 1, 0, 0))
	if merged, err := b.DB.Rollups.MergeRollups(ctx, mergeAge(now, hour+60), 10); err != nil || merged != 2 {
		t.Fatalf("MergeRollups: %d, %v", merged, err)
	}
	b.bring(ctx, t, b.DB.Relay, n, b.counted(hour+60, source, "b", "x", 1, 0, 0), b.counted(driver.MinuteOf(now), source, "b", "x", 1, 0, 0))
	purge := func(before int64, limit, want int) {
		t.Helper()
		// For a minute from now, the same minute.
		if got, err := b.DB.Rollups.PurgeRollups(ctx, now.Sub(driver.TimeOfMinute(before)), limit); err != nil || got != want {
			t.Errorf("PurgeRollups of %d before the minute %d deleted %d, %v; want %d", limit, before-hour, got, err, want)
		}
	}
	recent := fmt.Sprintf("%d b  1 0 0", driver.MinuteOf(now)-hour)
	purge(hour, 10, 0)
	purge(hour+61, 0, 0)
	b.wantRollups(ctx, t, "before a purge", hour, driver.RollupFilter{}, "0 a  2 0 0", "60 a  1 0 0", "60 b  1 0 0", recent)
	purge(hour+60, 10, 1)
	b.wantRollups(ctx, t, "after the first hour", hour, driver.RollupFilter{}, "60 a  1 0 0", "60 b  1 0 0", recent)
	purge(hour+61, 1, 1)
	purge(hour+61, 10, 1)
	purge(hour+61, 10, 0)
	b.wantRollups(ctx, t, "after it", hour, driver.RollupFilter{}, recent)
	if _, err := b.DB.Rollups.PurgeRollups(ctx, -time.Second, 10); err == nil {
		t.Errorf("PurgeRollups accepts a negative age")
	}
}
