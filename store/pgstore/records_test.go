package pgstore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func TestInboxRecords(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		var in []store.InboxEntry
		for i := range 12 {
			in = append(in, intake([]string{"B", "a", "a"}[i%3]))
		}
		slices.SortFunc(in, func(x, y store.InboxEntry) int {
			return strings.Compare(x.Group+string(x.Key[:]), y.Group+string(y.Key[:]))
		})
		// In group B four records fail, the last one first. In group a one
		// record is dead, one is in progress, one has an expired lease, and the
		// others succeed.
		for i := range 4 {
			if _, err := f.FailEvent(t.Context(), in[3-i], driver.Failure{Stored: []byte("k")}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.FailEvent(t.Context(), in[4], driver.Failure{Dead: true, Stored: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.ClaimEvent(t.Context(), in[5], waybill.NewID(), time.Hour, 3, []byte("k")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.ClaimEvent(t.Context(), in[6], waybill.NewID(), 0, 3, []byte("k")); err != nil {
			t.Fatal(err)
		}
		f.claim(t, in[7], 0, 3) // without a stored event
		f.acceptAll(t, in[8:]...)
		alone := intake("c")
		f.acceptAll(t, alone)

		same := func(what string, got []store.InboxRecord, err error, want ...store.InboxEntry) {
			t.Helper()
			var of []store.InboxEntry
			for _, r := range got {
				of = append(of, r.InboxEntry)
			}
			if err != nil || !slices.Equal(of, want) {
				t.Errorf("%s: %d records %v, %v; want %d: %v", what, len(of), of, err, len(want), want)
			}
		}
		due, err := f.DueRecords(t.Context(), "B", 3)
		same("due of B", due, err, in[3], in[2], in[1])
		due, err = f.DueRecords(t.Context(), "a", 10)
		same("due of a", due, err, in[6])
		if len(due) == 1 && string(due[0].Stored) != "k" {
			t.Errorf("kept is %q", due[0].Stored)
		}
		list := func(what string, filter store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int, want ...store.InboxEntry) {
			t.Helper()
			got, err := f.ListRecords(t.Context(), filter, afterGroup, afterKey, limit)
			same(what, got, err, want...)
		}
		list("all", store.RecordFilter{}, "", waybill.ID{}, 100, in[:8]...)
		list("a page", store.RecordFilter{}, "B", in[2].Key, 3, in[3:6]...)
		list("of a group", store.RecordFilter{Group: "a"}, "", waybill.ID{}, 2, in[4:6]...)
		list("of a group, behind", store.RecordFilter{Group: "a"}, "a", in[5].Key, 100, in[6:8]...)
		list("of states", store.RecordFilter{States: []store.InboxState{store.InboxDead, store.InboxProcessing}}, "", waybill.ID{}, 100, in[4:8]...)
		list("that succeeded", store.RecordFilter{States: []store.InboxState{store.InboxSucceeded}}, "", waybill.ID{}, 100, append(slices.Clone(in[8:]), alone)...)
		list("attempts", store.RecordFilter{MinAttempts: 2}, "", waybill.ID{}, 100)
		list("none", store.RecordFilter{}, "", waybill.ID{}, 0)

		open, err := f.GroupStats(t.Context(), false)
		if err != nil || len(open) != 2 || open[0].OldestDue <= 0 || open[0].HighestAttempts != 1 {
			t.Fatalf("open groups: %+v, %v", open, err)
		}
		open[0].OldestDue = 0
		want := []store.GroupStats{{Group: "B", Failed: 4, HighestAttempts: 1}, {Group: "a", Processing: 3, Dead: 1}}
		if !slices.Equal(open, want) {
			t.Errorf("open groups: %+v", open)
		}
		every, err := f.GroupStats(t.Context(), true)
		if err != nil || len(every) != 3 || every[2] != (store.GroupStats{Group: "c"}) {
			t.Errorf("all groups: %+v, %v", every, err)
		}

		// Only succeeded records of the group are purged.
		if n, err := f.PurgeRecords(t.Context(), "a", time.Hour, 100); err != nil || n != 0 {
			t.Errorf("nothing is an hour old: %d, %v", n, err)
		}
		if n, err := f.PurgeRecords(t.Context(), "a", 0, 3); err != nil || n != 3 {
			t.Errorf("three of four: %d, %v", n, err)
		}
		if n, err := f.PurgeRecords(t.Context(), "a", 0, 100); err != nil || n != 1 {
			t.Errorf("the last of four: %d, %v", n, err)
		}
		if n, err := f.PurgeRecords(t.Context(), "a", -1, 100); err == nil {
			t.Errorf("an age before it: %d", n)
		}
		list("the remaining records", store.RecordFilter{}, "", waybill.ID{}, 100, in[:8]...)
		if _, there := f.find(t, alone); !there {
			t.Error("another group was purged")
		}

		// Redriving by group takes the dead records, by key also the failed
		// records, and never records in progress.
		if n, err := f.Redrive(t.Context(), "B", nil, 100); err != nil || n != 0 {
			t.Errorf("B has no dead: %d, %v", n, err)
		}
		keys := []waybill.ID{in[0].Key, in[4].Key, in[5].Key, in[4].Key, alone.Key}
		if n, err := f.Redrive(t.Context(), "a", keys, 100); err != nil || n != 1 {
			t.Errorf("the dead record of a: %d, %v", n, err)
		}
		if rec, _ := f.find(t, in[4]); rec.State != store.InboxFailed || rec.Attempts != 0 || rec.Fence != 1 || rec.NextRetryAt.IsZero() || !rec.ProcessedAt.IsZero() {
			t.Errorf("redriven: %+v", rec)
		}
	})
}
