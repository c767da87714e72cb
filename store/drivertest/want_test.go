package drivertest

import (
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store"
)

// A failure lists the fields that differ, and no others.
func TestWantListsDifferences(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	rec := store.KeyRecord{
		KeyID: store.KeyID{Tenant: "t", Operation: "o", Key: "k"}, State: store.KeySucceeded, Fence: 1, Result: []byte("x"), CreatedAt: now,
		Point: store.KeyPoint{Name: "p"},
	}
	for _, c := range []struct {
		set  func(w *store.KeyRecord)
		want string
	}{
		{func(*store.KeyRecord) {}, ""},
		{func(w *store.KeyRecord) { w.CreatedAt = now.In(time.FixedZone("", 3600)) }, ""},
		{func(w *store.KeyRecord) { w.Fence = 2 }, "it: Fence is 1, want 2"},
		{func(w *store.KeyRecord) { w.Key = "l" }, `it: Key is "k", want "l"`},
		{func(w *store.KeyRecord) { w.Point.Name = "q" }, `it: Point.Name is "p", want "q"`},
		{func(w *store.KeyRecord) { w.State, w.Lost = store.KeyFailed, true }, "it: State is succeeded, want failed; Lost is false, want true"},
		{func(w *store.KeyRecord) { w.Result = nil }, `it: Result is "x", want nil`},
		{func(w *store.KeyRecord) { w.CreatedAt = time.Time{} }, "it: CreatedAt is 2026-01-02T03:04:05.000006Z, want no time"},
		{func(w *store.KeyRecord) { w.LastError = strings.Repeat("e", 1000) }, `it: LastError is "", want "` + strings.Repeat("e", 199) + "… (1002 bytes)"},
	} {
		log := &recorder{}
		wantFields(log, "it", rec, c.set)
		if got := strings.Join(log.failures, "\n"); got != c.want {
			t.Errorf("reported as %q, want %q", got, c.want)
		}
	}
}
