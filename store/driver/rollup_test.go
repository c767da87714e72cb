package driver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// TestRollupText: rows survive the form in which a heartbeat brings them; texts
// that no event or destination has are cut.
func TestRollupText(t *testing.T) {
	rows := []driver.RollupRow{
		{Minute: 29_000_000, Source: waybill.NewID(), Destination: "shipping", Type: `<Ü> \ "'`, RollupCounts: driver.RollupCounts{Delivered: 1, Failed: 2, Dead: 1 << 50}},
		{Minute: 0, Source: waybill.NewID()},
	}
	got, err := driver.DecodeRollup(driver.EncodeRollup(rows))
	if err != nil || !slices.Equal(got, rows) {
		t.Errorf("the rows are %+v, %v; want %+v", got, err, rows)
	}
	long := []driver.RollupRow{{Source: waybill.NewID(), Destination: strings.Repeat("d", 65), Type: strings.Repeat("ü", 65) + "\x00"}}
	got, err = driver.DecodeRollup(driver.EncodeRollup(long))
	if err != nil || len(got) != 1 || got[0].Destination != strings.Repeat("d", 64) || got[0].Type != strings.Repeat("ü", 64) {
		t.Errorf("the row is %+v, %v", got, err)
	}
	if text := driver.EncodeRollup(nil); text != "" {
		t.Errorf("no rows are %q", text)
	}
	if got, err := driver.DecodeRollup(""); got != nil || err != nil {
		t.Errorf("an empty text is %v, %v", got, err)
	}
	for _, bad := range []string{"x", "[1]", `[[1,2,3,4,5,6,7]]`, `[[1,"00","","",1,1,1]]`, `[["x","","","",1,1,1]]`} {
		if got, err := driver.DecodeRollup(bad); err == nil {
			t.Errorf("%s was read as %+v", bad, got)
		}
	}
}

// TestRollupMinutes: a minute that begins at Since is selected, one that begins
// at Until is not.
func TestRollupMinutes(t *testing.T) {
	minute := time.Date(2026, 7, 1, 12, 30, 0, 0, time.UTC)
	n := driver.MinuteOf(minute)
	if !driver.TimeOfMinute(n).Equal(minute) || driver.MinuteOf(minute.Add(time.Minute-1)) != n || driver.MinuteOf(time.Time{}) != 0 {
		t.Errorf("the minute of %v is %d, which begins at %v", minute, n, driver.TimeOfMinute(n))
	}
	for _, c := range []struct {
		f                  driver.RollupFilter
		since, until, step int64
	}{
		{driver.RollupFilter{}, 0, 1<<31 - 1, 1},
		{driver.RollupFilter{Since: minute, Until: minute.Add(time.Hour), Step: time.Hour}, n, n + 60, 60},
		{driver.RollupFilter{Since: minute.Add(1), Until: minute.Add(1), Step: 90 * time.Second}, n + 1, n + 1, 1},
		{driver.RollupFilter{Since: time.Unix(-100, 0), Until: time.Unix(-100, 0)}, 0, 0, 1},
	} {
		if since, until, step := c.f.Minutes(); since != c.since || until != c.until || step != c.step {
			t.Errorf("%+v is %d, %d, %d; want %d, %d, %d", c.f, since, until, step, c.since, c.until, c.step)
		}
	}
	if got := driver.MergeBefore(minute, 24*time.Hour); got != driver.MinuteOf(time.Date(2026, 6, 30, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("minutes before %v are merged", driver.TimeOfMinute(got))
	}
}
