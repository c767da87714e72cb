package dashboard_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestLettersByTimeAndError: the filters of dead letters select by the time of
// death, a part of the error and the correlation id, and a change of all that
// match affects no others.
func TestLettersByTimeAndError(t *testing.T) {
	s := newShop(t)
	s.cfg.Allow = anything
	var ids []string
	for i := range 6 {
		ev := event("OrderPlaced", "")
		ev.CorrelationID = []string{"call-1", "call-2"}[i%2]
		s.write(ev)
		s.kill(says([]string{"dial 10.0.0.1: connection refused", "customer <7> is unknown"}[i/3]))
		ids = append(ids, ev.ID.String())
	}
	died := func(i int) time.Time {
		id, err := waybill.ParseID(ids[i])
		s.must(err)
		r, err := s.ops.Find(t.Context(), id)
		s.must(err)
		return r.EndedAt
	}
	between := died(3).UTC().Format("2006-01-02T15:04:05.999999999")
	s.open()
	for query, want := range map[string][]int{
		"error=connection+refused":            {0, 1, 2},
		"error=Connection":                    {},
		"error=%3C7%3E":                       {3, 4, 5},
		"correlation_id=call-2":               {1, 3, 5},
		"correlation_id=call-2&error=unknown": {3, 5},
		"since=" + between + "Z":              {3, 4, 5},
		"until=" + between + "Z":              {0, 1, 2},
		"since=1h&until=2200-01-01":           {0, 1, 2, 3, 4, 5},
		"since=2200-01-01+10%3A00":            {},
		"until=2d":                            {},
	} {
		for _, screen := range []string{"/dead?", "/events?state=dead&"} {
			page := s.page(screen + query)
			for i, id := range ids {
				wanted := false
				for _, n := range want {
					wanted = wanted || n == i
				}
				if strings.Contains(page, `events/`+id) != wanted {
					t.Errorf("%s%s: event %d is there: %v", screen, query, i, !wanted)
				}
			}
		}
	}
	for _, query := range []string{"since=yesterday", "until=-3h", "since=0d", "since=2026-01-02&until=2026-01-01", "since=1h&until=2h"} {
		if a := s.get("/dead?" + query); a.status != http.StatusBadRequest {
			t.Errorf("%s: status %d", query, a.status)
		}
	}
	f := s.form(s.page("/dead?since=1h&error=is+unknown"), "replay", `name="all"`)
	if f.Get("error") != "is unknown" || f.Get("since") == "1h" || f.Get("since") == "" {
		t.Errorf("the form selects %v", f)
	}
	f.Set("number", "3")
	has(t, s.post("replay", f).text, "Replayed 3 events")
	if n := s.count(store.Dead); n != 3 {
		t.Errorf("%d dead letters remain, want 3", n)
	}
}

// TestDeliveredBefore: a search for delivered events before a time begins
// there, and not at the newest event.
func TestDeliveredBefore(t *testing.T) {
	s := newShop(t)
	old, late := event("OrderPlaced", ""), event("OrderPlaced", "")
	for i, ev := range []*waybill.Event{&old, &late} {
		made := time.Now().Add(time.Duration(i-1) * 48 * time.Hour).UnixMilli()
		for b := 5; b >= 0; b-- {
			ev.ID[b] = byte(made)
			made >>= 8
		}
	}
	s.write(old, late)
	s.settle(s.roles.Relay, func(row store.Row, out *driver.Settlement) {
		out.Done = append(out.Done, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq})
	})
	s.open()
	s.dash.SearchRows(1)
	until := time.Now().Add(-3 * time.Hour).UTC().Format(time.RFC3339)
	page := s.page("/events?state=delivered&until=" + until)
	lacks(t, page, late.ID.String())
	if strings.Contains(page, "Search further back") == strings.Contains(page, "No event matches") {
		t.Error("the page does not say how far it searched")
	}
	has(t, s.page("/events?state=delivered&since=1h"), late.ID.String())
}

// TestJobs: the page of jobs has the results of their last runs.
func TestJobs(t *testing.T) {
	s := newShop(t)
	jobs, err := admin.NewJobs(s.db, admin.Config{})
	s.must(err)
	s.open()
	lacks(t, s.page("/"), ">Jobs<")
	s.cfg.Jobs = jobs
	s.open()
	has(t, s.page("/jobs"), "No job has run", ">Jobs<")
	r, err := reconcile.New(s.db, []reconcile.Job{job("fine", nil), job("orders <b>", errors.New("relation orders does not exist"))}, reconcile.Config{
		Logger: slog.New(slog.DiscardHandler),
	})
	s.must(err)
	_, err = r.RunOnce(t.Context(), "fine")
	s.must(err)
	if _, err = r.RunOnce(t.Context(), "orders <b>"); err == nil {
		t.Error("the job succeeds")
	}
	has(t, s.page("/jobs"), "fine", "s-ok", "orders &lt;b&gt;", "s-failing", "relation orders does not exist")
}

// job returns a job that finds nothing, or fails.
func job(name string, err error) reconcile.Job {
	return reconcile.Job{Name: name, Check: func(context.Context, reconcile.Window, func(string)) error { return err }}
}

// TestDoctor: the page has the findings, the most severe first; pages that are
// opened at the same time, or shortly after, share a run of the checks.
func TestDoctor(t *testing.T) {
	s := newShop(t)
	runs := make(chan struct{}, 10)
	leave := make(chan struct{})
	s.cfg.QueryTimeout = 50 * time.Millisecond
	s.cfg.Doctor = func(context.Context) ([]dashboard.Finding, error) {
		runs <- struct{}{}
		<-leave
		return []dashboard.Finding{
			{Check: "store", Status: "ok", Text: "answers"},
			{Check: "sink", Status: "not checked", Text: "no server"},
			{Check: "waiting", Status: "fail", Text: "the oldest <event> waits", Command: "waybill serve"},
			{Check: "blocked", Status: "warn", Text: "one"},
		}, nil
	}
	s.open()
	for range 2 {
		if a := s.get("/doctor"); a.status != http.StatusServiceUnavailable || !strings.Contains(a.text, "still running") {
			t.Errorf("while the checks run: %d %s", a.status, a.text)
		}
	}
	close(leave)
	var page string
	for deadline := time.Now().Add(time.Minute); page == "" && time.Now().Before(deadline); {
		if a := s.get("/doctor"); a.status == http.StatusOK {
			page = a.text
		}
	}
	has(t, page, "2 findings to act on", "the oldest &lt;event&gt; waits", "waybill serve", "s-fail", "s-not checked")
	last := -1
	for _, check := range []string{">waiting<", ">blocked<", ">sink<", ">store<"} {
		i := strings.Index(page, "<bdi"+check)
		if i <= last {
			t.Errorf("the check %s is at %d, after %d", check, i, last)
		}
		last = i
	}
	s.page("/doctor")
	if len(runs) != 1 {
		t.Errorf("the checks ran %d times", len(runs))
	}
	broken := newShop(t)
	broken.cfg.Doctor = func(context.Context) ([]dashboard.Finding, error) { return nil, errors.New("no settings") }
	broken.open()
	if a := broken.get("/doctor"); a.status != http.StatusInternalServerError {
		t.Errorf("checks that cannot run: %d", a.status)
	}
}
