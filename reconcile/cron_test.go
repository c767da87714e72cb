package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/reconcile"
)

// TestCron: the next runs of expressions, with ranges, lists, steps, names,
// both fields of days, leap days and changes of the clock.
func TestCron(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	const form = "Mon 2006-01-02 15:04 MST"
	for _, c := range []struct {
		expression, after string
		zone              *time.Location
		want              []string
	}{
		{"* * * * *", "2026-01-31 23:59", time.UTC, []string{"Sun 2026-02-01 00:00 UTC", "Sun 2026-02-01 00:01 UTC"}},
		{"*/20 3 * * *", "2026-01-01 03:20", time.UTC, []string{"Thu 2026-01-01 03:40 UTC", "Fri 2026-01-02 03:00 UTC"}},
		{"5/25 * * * *", "2026-01-01 03:20", time.UTC, []string{"Thu 2026-01-01 03:30 UTC", "Thu 2026-01-01 03:55 UTC", "Thu 2026-01-01 04:05 UTC"}},
		{"0 9-17/4,22 * * mon-fri", "2026-01-02 12:59", time.UTC, []string{"Fri 2026-01-02 13:00 UTC", "Fri 2026-01-02 17:00 UTC", "Fri 2026-01-02 22:00 UTC", "Mon 2026-01-05 09:00 UTC"}},
		{"30 4 1,15 * 5", "2026-01-01 04:30", time.UTC, []string{"Fri 2026-01-02 04:30 UTC", "Fri 2026-01-09 04:30 UTC", "Thu 2026-01-15 04:30 UTC"}},
		{"0 0 */10 * 1", "2026-01-01 00:00", time.UTC, []string{"Mon 2026-05-11 00:00 UTC"}},
		{"0 0 * * 7", "2026-01-01 00:00", time.UTC, []string{"Sun 2026-01-04 00:00 UTC"}},
		{"0 0 * * sun", "2026-01-01 00:00", time.UTC, []string{"Sun 2026-01-04 00:00 UTC"}},
		{"0 0 29 feb *", "2096-03-01 00:00", time.UTC, []string{"Fri 2104-02-29 00:00 UTC"}},
		{"0 12 31 * *", "2026-03-31 12:00", time.UTC, []string{"Sun 2026-05-31 12:00 UTC"}},
		{"0 0 */9223372036854775807 * *", "2026-01-01 00:00", time.UTC, []string{"Sun 2026-02-01 00:00 UTC"}},
		{"@yearly", "2026-01-01 00:00", time.UTC, []string{"Fri 2027-01-01 00:00 UTC"}},
		{"@monthly", "2026-01-01 00:00", time.UTC, []string{"Sun 2026-02-01 00:00 UTC"}},
		{"@weekly", "2026-01-01 00:00", time.UTC, []string{"Sun 2026-01-04 00:00 UTC"}},
		{"@Daily", "2026-01-01 00:00", time.UTC, []string{"Fri 2026-01-02 00:00 UTC"}},
		{"@hourly", "2026-01-01 00:00", time.UTC, []string{"Thu 2026-01-01 01:00 UTC"}},
		// The clock goes forward from 02:00 to 03:00, and back from 03:00.
		{"30 2 * * *", "2026-03-28 02:30", berlin, []string{"Mon 2026-03-30 02:30 CEST"}},
		{"30 * 29 3 *", "2026-03-29 01:30", berlin, []string{"Sun 2026-03-29 03:30 CEST"}},
		{"30 2 * * *", "2026-10-24 02:30", berlin, []string{"Sun 2026-10-25 02:30 CEST", "Sun 2026-10-25 02:30 CET", "Mon 2026-10-26 02:30 CET"}},
		{"CRON_TZ=Europe/Berlin 0 12 * * *", "2026-07-01 09:59", time.UTC, []string{"Wed 2026-07-01 10:00 UTC", "Thu 2026-07-02 10:00 UTC"}},
	} {
		t.Run(c.expression, func(t *testing.T) {
			s, err := reconcile.Cron(c.expression)
			if err != nil {
				t.Fatal(err)
			}
			at, err := time.ParseInLocation("2006-01-02 15:04", c.after, c.zone)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if at = s.Next(at.Add(17 * time.Second)); at.Format(form) != want {
					t.Fatalf("the next run is %s, want %s", at.Format(form), want)
				}
			}
		})
	}
}

// TestCronIsChecked: an invalid expression names its field.
func TestCronIsChecked(t *testing.T) {
	for expression, want := range map[string]string{
		"": "0 fields", "* * * *": "4 fields", "60 * * * *": `minute: "60" is not between 0 and 59`, "* 24 * * *": "hour", "* * 0 * *": "day of the month",
		"* * * 13 *": "month", "* * * * 8": "day of the week", "*/0 * * * *": "step", "*/x * * * *": "step", "5-1 * * * *": "ends before it begins",
		"a * * * *": "minute", "@often": "unknown name", "0 0 30 2 *": "no such day", "CRON_TZ=Nowhere/City * * * * *": "Nowhere/City", "1- * * * *": "minute",
	} {
		if _, err := reconcile.Cron(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", expression, err, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MustCron accepts an invalid expression")
		}
	}()
	reconcile.MustCron("x")
}
