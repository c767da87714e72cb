package mysqlstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The limit of a read counts per lane, with and without a backlog.
func TestLimitIsPerLane(t *testing.T) { onBoth(t, testLimitIsPerLane) }

func testLimitIsPerLane(t *testing.T) {
	s, db := openStore(t, nil)
	r := s.Driver().Relay
	perLane := func(keys []store.Key) []int {
		counts := make(map[int]int)
		for _, k := range keys {
			counts[k.Lane]++
		}
		return []int{counts[driver.LaneOf("", "thing", "a", 32)], counts[driver.LaneOf("", "thing", "b", 32)]}
	}
	read := func(limit int) (fetched, swept []int) {
		t.Helper()
		page, err := r.Fetch(t.Context(), cursors(32), limit)
		if err != nil || page.Now.IsZero() {
			t.Fatal(page.Now, err)
		}
		refs, err := r.Sweep(t.Context(), cursors(32), limit)
		if err != nil {
			t.Fatal(err)
		}
		var rows, seen []store.Key
		for _, row := range page.Rows {
			rows = append(rows, row.Key)
		}
		for _, ref := range refs {
			seen = append(seen, ref.Key)
		}
		return perLane(rows), perLane(seen)
	}
	write(t, s, db, event("a"), event("b"), event("a"), event("b"), event("a"), event("b"))
	for _, c := range []struct {
		limit int
		want  []int
	}{{7, []int{3, 3}}, {6, []int{3, 3}}, {3, []int{3, 3}}, {2, []int{2, 2}}, {2, []int{2, 2}}, {0, []int{0, 0}}, {7, []int{3, 3}}} {
		if fetched, swept := read(c.limit); !slices.Equal(fetched, c.want) || !slices.Equal(swept, c.want) {
			t.Errorf("limit %d: fetched %v, swept %v, want %v", c.limit, fetched, swept, c.want)
		}
	}
}

// Due finds the longest due events and the next due time among few and among
// many delayed events.
func TestDueOfMany(t *testing.T) { onBoth(t, testDueOfMany) }

func testDueOfMany(t *testing.T) {
	s, db := openStore(t, nil)
	lanes := allLanes()
	placed := func(lane int, due string) waybill.ID {
		ev := event("")
		ev.Delay = time.Hour
		write(t, s, db, ev)
		exec(t, db, "UPDATE waybill_delayed SET lane = ?, due_at = UTC_TIMESTAMP(6) + INTERVAL "+due+" WHERE id = ?", lane, ev.ID[:])
		return ev.ID
	}
	first, next := placed(31, "-3 HOUR"), placed(30, "1 HOUR")
	check := func(delayed int) {
		t.Helper()
		page, err := s.Driver().Relay.Due(t.Context(), lanes, 1)
		if err != nil || len(page.Rows) != 1 || page.Rows[0].ID != first {
			t.Errorf("of %d: %d rows, %v; want the row that has been due longest", delayed, len(page.Rows), err)
		}
		wait := ask[float64](t, db, "SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', due_at) FROM waybill_delayed WHERE id = ?", next[:])
		if page.Now.IsZero() || float64(page.Next.UnixMicro()) != wait {
			t.Errorf("of %d: at %v the next is due at %v", delayed, page.Now, page.Next)
		}
	}
	check(2)
	for n := 3; n <= 67; n++ {
		placed(n%8, "-1 HOUR")
		if n >= 63 {
			check(n)
		}
	}
	page, err := s.Driver().Relay.Due(t.Context(), lanes[8:31], 1)
	if err != nil || len(page.Rows) != 0 || page.Now.IsZero() || page.Next.IsZero() {
		t.Errorf("lanes without due events: %+v, %v", page, err)
	}
}
