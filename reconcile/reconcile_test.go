package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) *memstore.Store[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// yields returns a Find that yields events of these aggregates.
func yields(ids ...string) func(context.Context, reconcile.Window, func(waybill.Event) error) error {
	return func(_ context.Context, _ reconcile.Window, missing func(waybill.Event) error) error {
		for _, id := range ids {
			ev := waybill.NewEvent("Happened", 0)
			ev.AggregateType, ev.AggregateID = "row", id
			if err := missing(ev); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestNewRefuses: New reports all invalid fields at once, in the order of the
// fields, and refuses a look-back that is longer than the traces are kept.
func TestNewRefuses(t *testing.T) {
	repair := func(context.Context, reconcile.Window) (int, error) { return 0, nil }
	for want, job := range map[string]reconcile.Job{
		`job "": Job.Name: 0 bytes, want 1 to 128`:                                        {Find: yields()},
		`job "j": Job.Find: nil; a job has a Find, a Repair or a Check`:                   {Name: "j"},
		`job "j": Job.Find: excludes Job.Repair and Job.Check`:                            {Name: "j", Find: yields(), Repair: repair},
		`job "j": Job.LookBack: 1m0s is not above Job.MinAge (1m0s)`:                      {Name: "j", Find: yields(), LookBack: time.Minute},
		`job "j": Job.LookBack: 24h0m0s is not shorter than Job.TraceRetention (24h0m0s)`: {Name: "j", Find: yields(), TraceRetention: 24 * time.Hour},
		`job "j": Job.ResendAfter: 2h0m0s is above Job.LookBack (1h0m0s)`:                 {Name: "j", Find: yields(), LookBack: time.Hour, ResendAfter: 2 * time.Hour},
		`job "` + strings.Repeat("x", 129) + `": Job.Name: 129 bytes, want 1 to 128`:      {Name: strings.Repeat("x", 129), Find: yields()},
		`job "": Job.Name: 0 bytes, want 1 to 128
job "": Job.Schedule: Every(-1s) is not positive
job "": Job.LookBack: -1s is not above Job.MinAge (0s)
job "": Job.TraceRetention: -3s is negative
job "": Job.ResendAfter: 1s is above Job.LookBack (-1s)
job "": Job.Limit: -1 is negative
job "": Job.Find: nil; a job has a Find, a Repair or a Check`: {
			Schedule: reconcile.Every(-time.Second), LookBack: -time.Second, MinAge: -time.Second, TraceRetention: -3 * time.Second, ResendAfter: time.Second, Limit: -1,
		},
	} {
		_, err := reconcile.New(open(t), []reconcile.Job{job}, reconcile.Config{Lease: -1, BatchSize: -2})
		want = "reconcile: Config.Lease: -1ns is shorter than 100ms\nConfig.BatchSize: -2 is negative\n" + want
		if err == nil || err.Error() != want {
			t.Errorf("the error is\n%v\nwant\n%s", err, want)
		}
	}
	good := reconcile.Job{Name: "j", Find: yields(), TraceRetention: 25 * time.Hour}
	if _, err := reconcile.New(open(t), []reconcile.Job{good}, reconcile.Config{}); err != nil {
		t.Error(err)
	}
	if _, err := reconcile.New(open(t), []reconcile.Job{good, good}, reconcile.Config{}); err == nil || err.Error() != `reconcile: job "j": Job.Name: another job has it` {
		t.Errorf("two jobs of one name: %v", err)
	}
	if _, err := reconcile.New(open(t), nil, reconcile.Config{}); err == nil {
		t.Error("no jobs were accepted")
	}
	if _, err := reconcile.New[*memstore.Tx](nil, []reconcile.Job{good}, reconcile.Config{}); err == nil {
		t.Error("no store was accepted")
	}
}

// forgetful is a store that cannot remember sent events.
type forgetful struct{ driver.Jobs[*memstore.Tx] }

var errForgot = errors.New("cannot remember")

func (forgetful) RememberSent(context.Context, *memstore.Tx, driver.JobAttempt, []driver.Sent) (bool, error) {
	return false, errForgot
}

// TestSentAndRememberedTogether: an event that cannot be remembered is not
// sent, because both are one transaction.
func TestSentAndRememberedTogether(t *testing.T) {
	db := open(t)
	forgets := db.Driver()
	forgets.Jobs = forgetful{forgets.Jobs}
	r, err := reconcile.New(forgets, []reconcile.Job{{Name: "j", Find: yields("1", "2")}}, reconcile.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := r.RunOnce(t.Context(), "j"); !errors.Is(err, errForgot) || rep.Sent != 0 || rep.Failed != 2 {
		t.Errorf("the run: %+v, %v", rep, err)
	}
	if n, err := db.Driver().OutboxAdmin.Count(t.Context(), store.Ready, store.Filter{}); n != 0 || err != nil {
		t.Errorf("%d events were sent, %v", n, err)
	}
	if rec, _, err := db.Driver().JobRecords.FindJob(t.Context(), "j"); err != nil || rec.Failed != 2 || !rec.Owner.IsZero() || rec.LastError == "" {
		t.Errorf("the record: %+v, %v", rec, err)
	}
}

// nightly runs at three.
type nightly struct{}

func (nightly) Next(after time.Time) time.Time {
	at := time.Date(after.Year(), after.Month(), after.Day(), 3, 0, 0, 0, after.Location())
	if !at.After(after) {
		at = at.AddDate(0, 0, 1)
	}
	return at
}

// never is a schedule that has ended.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// TestSchedules: each job runs at once and then on its schedule, with any
// implementation of Schedule.
func TestSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		var hourly, daily, once []time.Time
		note := func(list *[]time.Time) func(context.Context, reconcile.Window) (int, error) {
			return func(context.Context, reconcile.Window) (int, error) {
				*list = append(*list, time.Now())
				return 0, nil
			}
		}
		jobs := []reconcile.Job{
			{Name: "hourly", Schedule: reconcile.Every(time.Hour), Repair: note(&hourly)},
			{Name: "daily", Schedule: nightly{}, Repair: note(&daily)},
			{Name: "once", Schedule: never{}, Repair: note(&once)},
		}
		start := time.Now()
		run := func(d time.Duration) {
			r, err := reconcile.New(db, jobs, reconcile.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		}
		run(90 * time.Minute)
		// another process continues where this one stopped
		run(72*time.Hour - 90*time.Minute + time.Second)
		if len(hourly) != 73 || !hourly[1].Equal(start.Add(time.Hour)) || !hourly[72].Equal(start.Add(72*time.Hour)) {
			t.Errorf("hourly: %d times, %v", len(hourly), hourly)
		}
		if len(daily) != 4 || daily[1].Hour() != 3 || daily[3].Sub(daily[2]) != 24*time.Hour {
			t.Errorf("daily: %v", daily)
		}
		if len(once) != 1 {
			t.Errorf("once: %v", once)
		}
	})
}

// TestReported: the observer and the log receive every run.
func TestReported(t *testing.T) {
	var told []observe.ReconciledInfo
	var log bytes.Buffer
	boom := errors.New("boom")
	r, err := reconcile.New(open(t), []reconcile.Job{
		{Name: "sends", Find: yields("1", "2", "1")},
		{Name: "fails", Find: func(context.Context, reconcile.Window, func(waybill.Event) error) error { return boom }},
		{Name: "checks", Check: func(_ context.Context, _ reconcile.Window, found func(string)) error { found("something"); return nil }},
	}, reconcile.Config{
		Observe: observe.Hooks{Reconciled: func(info observe.ReconciledInfo) {
			if info.Took <= 0 {
				t.Errorf("%s took %v", info.Job, info.Took)
			}
			info.Took = 0
			told = append(told, info)
		}},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"sends", "fails", "checks"} {
		if rep, err := r.RunOnce(t.Context(), job); (err != nil) != (job == "fails") {
			t.Errorf("%s: %+v, %v", job, rep, err)
		}
	}
	if len(told) != 3 || told[0] != (observe.ReconciledInfo{Job: "sends", Found: 3, Sent: 2, Skipped: 1}) || !errors.Is(told[1].Err, boom) || told[2].Found != 1 {
		t.Errorf("told was %+v", told)
	}
	for _, want := range []string{"job=sends found=3 sent=2 skipped=1 failed=0", "level=WARN msg=reconciled component=reconcile job=checks"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
}

// TestTenantsAreApart: the tenant of the context is part of the key, as it is
// in the outbox.
func TestTenantsAreApart(t *testing.T) {
	r, err := reconcile.New(open(t), []reconcile.Job{{Name: "j", Find: yields("1")}}, reconcile.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"a", "b", "a"} {
		ctx := waybill.ContextWithOrigin(t.Context(), waybill.Origin{TenantID: tenant})
		rep, err := r.RunOnce(ctx, "j")
		if err != nil || rep.Sent+rep.Skipped != 1 {
			t.Errorf("tenant %s: %+v, %v", tenant, rep, err)
		}
	}
	recs, err := r.RunOnce(t.Context(), "j")
	if err != nil || recs.Sent != 1 {
		t.Errorf("without a tenant: %+v, %v", recs, err)
	}
}
