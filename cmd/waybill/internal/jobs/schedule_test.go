package jobs

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/reconcile"
)

// TestSchedule: a job of the file runs at an interval, or at the times of a
// cron expression; without either it keeps its default.
func TestSchedule(t *testing.T) {
	saturday := time.Date(2026, 11, 14, 12, 0, 0, 0, time.UTC)
	usual := reconcile.Every(time.Minute)
	for _, c := range []struct {
		def  settings.Job
		want time.Time
	}{
		{settings.Job{}, saturday.Add(time.Minute)},
		{settings.Job{Every: 7 * time.Minute}, saturday.Add(7 * time.Minute)},
		{settings.Job{Cron: "30 4 * * mon-fri"}, time.Date(2026, 11, 16, 4, 30, 0, 0, time.UTC)},
		{settings.Job{Cron: "CRON_TZ=Europe/Berlin 0 6 * * *"}, time.Date(2026, 11, 15, 5, 0, 0, 0, time.UTC)},
	} {
		j := reconcile.Job{Schedule: usual}
		if err := schedule(&j, c.def); err != nil {
			t.Errorf("%+v: %v", c.def, err)
		} else if next := j.Schedule.Next(saturday); !next.Equal(c.want) {
			t.Errorf("%+v: next is %v, want %v", c.def, next, c.want)
		}
	}
	for _, def := range []settings.Job{{Every: time.Minute, Cron: "@daily"}, {Cron: "61 * * * *"}} {
		if err := schedule(&reconcile.Job{}, def); err == nil {
			t.Errorf("%+v was accepted", def)
		}
	}
}
