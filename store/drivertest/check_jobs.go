package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// jobChecks check the records of reconciliation jobs and their sent events.
// Package reconciletest checks the jobs themselves.
func jobChecks[T any]() []check[T] {
	return []check[T]{
		{row: "jobs_run_on_one_node", name: "one of many runs a job", run: jobRace[T]},
		{row: "jobs_run_on_one_node", name: "claims, leases and their fences", run: jobClaims[T]},
		{row: "jobs_run_on_one_node", name: "the end of a run", run: jobEnds[T]},
		{row: "sent_and_remembered_together", name: "sent with the transaction", run: jobSends[T]},
		{row: "sent_and_remembered_together", name: "nothing is sent without the fence", run: jobSendsLate[T]},
		{row: "sent_and_remembered_together", name: "sending needs an open transaction", needs: foreignTx, run: jobSendsEnded[T]},
		{row: "sent_and_remembered_together", name: "a takeover waits for events being sent", needs: foreignTx, run: jobTakeOverWaits[T]},
		{row: "forget_sent_events", name: "sent events are forgotten", run: jobForgets[T]},
		{
			row: "delivered_without_record", name: "delivered and never recorded", fresh: true, run: unrecorded[T],
			roles: []string{"Outbox", "Relay", "Inbox", "OutboxAdmin", "HistoryAudit"},
		},
	}
}

// claimJob claims a free job.
func (b *env[T]) claimJob(ctx context.Context, t tb, name string, lease time.Duration) driver.JobAttempt {
	t.Helper()
	owner := waybill.NewID()
	rec, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: name, Owner: owner, Lease: lease, Seen: -1})
	if err != nil || !ok {
		t.Fatalf("ClaimJob: %+v, %v, %v", rec, ok, err)
	}
	return driver.JobAttempt{Name: name, Owner: owner, Fence: rec.Fence}
}

// jobRace claims a job concurrently: a new one, one whose lease has expired,
// and a released one.
func jobRace[T any](ctx context.Context, t tb, b *env[T]) {
	lapsed, ended := b.tag+"lapsed", b.tag+"ended"
	b.claimJob(ctx, t, lapsed, 0)
	if ok, err := b.DB.Jobs.EndJob(ctx, b.claimJob(ctx, t, ended, time.Hour), driver.JobEnd{}); !ok || err != nil {
		t.Fatalf("EndJob: %v, %v", ok, err)
	}
	for name, seen := range map[string]int64{b.tag + "new": 0, lapsed: 1, ended: 1} {
		var won atomic.Int64
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				rec, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: name, Owner: waybill.NewID(), Lease: time.Minute, Seen: seen})
				if err != nil || rec.Fence != seen+1 {
					t.Errorf("ClaimJob: %+v, %v", rec, err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if n := won.Load(); n != 1 {
			t.Errorf("%d of 20 run the job %s", n, name)
		}
	}
}

func jobClaims[T any](ctx context.Context, t tb, b *env[T]) {
	name := b.tag + "Job"
	rec, ok, err := b.DB.Jobs.FindJob(ctx, name)
	if ok || err != nil || rec.Now.IsZero() {
		t.Errorf("a job that never ran: %+v, %v, %v", rec, ok, err)
	}
	if rec, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: name, Owner: waybill.NewID(), Lease: time.Hour, Seen: 7}); ok || err != nil {
		t.Errorf("a claim with an unknown fence: %+v, %v", rec, err)
	}
	a := b.claimJob(ctx, t, name, time.Hour)
	// Names compare as bytes.
	b.claimJob(ctx, t, strings.ToLower(name), time.Hour)
	rec, ok, err = b.DB.Jobs.FindJob(ctx, name)
	if err != nil || !ok || rec.StartedAt.IsZero() || rec.Now.Before(rec.StartedAt) {
		t.Errorf("after the claim: %v, %v; started at %v, it is %v", ok, err, rec.StartedAt, rec.Now)
	}
	wantFields(t, "after the claim", rec, func(w *store.JobRecord) { w.Name, w.Owner, w.Fence, w.EndedAt = name, a.Owner, 1, time.Time{} })
	if left := rec.LeaseUntil.Sub(rec.Now); left < 59*time.Minute || left > time.Hour {
		t.Errorf("its lease is %v", left)
	}
	for _, seen := range []int64{-1, 0, 1} {
		if rec, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: name, Owner: waybill.NewID(), Lease: time.Hour, Seen: seen}); ok || err != nil || rec.Owner != a.Owner {
			t.Errorf("a claim of a held job, with the fence %d: %+v, %v, %v", seen, rec, ok, err)
		}
	}
	for what, wrong := range map[string]driver.JobAttempt{
		"another owner": {Name: name, Owner: waybill.NewID(), Fence: 1}, "another fence": {Name: name, Owner: a.Owner, Fence: 2},
		"another job": {Name: name + "x", Owner: a.Owner, Fence: 1},
	} {
		renewed, err := b.DB.Jobs.RenewJob(ctx, wrong, time.Hour)
		ended, err2 := b.DB.Jobs.EndJob(ctx, wrong, driver.JobEnd{})
		if renewed || ended || err != nil || err2 != nil {
			t.Errorf("%s renewed: %v, %v; ended: %v, %v", what, renewed, err, ended, err2)
		}
	}
	for range 2 {
		if ok, err := b.DB.Jobs.RenewJob(ctx, a, 2*time.Hour); !ok || err != nil {
			t.Errorf("RenewJob: %v, %v", ok, err)
		}
	}
	if rec, _, err = b.DB.Jobs.FindJob(ctx, name); err != nil || rec.LeaseUntil.Sub(rec.Now) < 119*time.Minute || rec.LeaseUntil.Sub(rec.Now) > 2*time.Hour {
		t.Errorf("the renewed lease ends at %v; it is %v, %v", rec.LeaseUntil, rec.Now, err)
	}
	if rec, _, err = b.DB.Jobs.FindJob(ctx, strings.ToLower(name)); err != nil || rec.LeaseUntil.Sub(rec.Now) > time.Hour {
		t.Errorf("the lease of another job ends at %v; it is %v, %v", rec.LeaseUntil, rec.Now, err)
	}
	for range 2 { // the first lets it expire, the second finds it expired
		if ok, err := b.DB.Jobs.RenewJob(ctx, a, 0); !ok || err != nil {
			t.Errorf("RenewJob: %v, %v", ok, err)
		}
	}
	next := b.claimJob(ctx, t, name, time.Hour)
	if ok, err := b.DB.Jobs.RenewJob(ctx, a, time.Hour); ok || err != nil {
		t.Errorf("a run that lost the job renewed it: %v, %v", ok, err)
	}
	if next.Fence != 2 {
		t.Errorf("the fence of a takeover is %d", next.Fence)
	}
	if ok, err := b.DB.Jobs.EndJob(ctx, a, driver.JobEnd{}); ok || err != nil {
		t.Errorf("a run that lost the job ended it: %v, %v", ok, err)
	}
}

func jobEnds[T any](ctx context.Context, t tb, b *env[T]) {
	name := b.tag + "ends"
	// Also an expired lease, if no other run has the job.
	a := b.claimJob(ctx, t, name, 0)
	next := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	long := strings.Repeat("ü", 3000)
	if ok, err := b.DB.Jobs.EndJob(ctx, a, driver.JobEnd{Found: 4, Sent: 1, Skipped: 2, Failed: 3, Next: next, Error: long}); !ok || err != nil {
		t.Fatalf("EndJob: %v, %v", ok, err)
	}
	rec, _, err := b.DB.Jobs.FindJob(ctx, name)
	if err != nil || rec.EndedAt.Before(rec.StartedAt) {
		t.Errorf("after the end: %v; started at %v, ended at %v", err, rec.StartedAt, rec.EndedAt)
	}
	wantFields(t, "after the end", rec, func(w *store.JobRecord) {
		w.Owner, w.LeaseUntil, w.Next, w.LastError = waybill.ID{}, time.Time{}, next, driver.CutError(long)
		w.Found, w.Sent, w.Skipped, w.Failed = 4, 1, 2, 3
	})
	for _, seen := range []int64{0, 2} { // another node has run the job meanwhile
		if rec, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: name, Owner: waybill.NewID(), Lease: time.Hour, Seen: seen}); ok || err != nil || rec.Fence != 1 {
			t.Errorf("a claim of a free job, with the fence %d instead of 1: %+v, %v, %v", seen, rec, ok, err)
		}
	}
	if ok, err := b.DB.Jobs.EndJob(ctx, a, driver.JobEnd{}); ok || err != nil {
		t.Errorf("a second end: %v, %v", ok, err)
	}
	if ok, err := b.DB.Jobs.EndJob(ctx, b.claimJob(ctx, t, name, time.Hour), driver.JobEnd{}); !ok || err != nil {
		t.Fatalf("EndJob: %v, %v", ok, err)
	}
	rec, _, err = b.DB.Jobs.FindJob(ctx, name)
	if err != nil {
		t.Fatalf("FindJob: %v", err)
	}
	wantFields(t, "after another run", rec, func(w *store.JobRecord) {
		w.Fence, w.Next, w.LastError = 2, time.Time{}, ""
		w.Found, w.Sent, w.Skipped, w.Failed = 0, 0, 0, 0
	})
	b.claimJob(ctx, t, b.tag+"another", time.Hour)
	all, err := b.DB.Jobs.ListJobs(ctx)
	mine := slices.DeleteFunc(all, func(r store.JobRecord) bool { return !strings.HasPrefix(r.Name, b.tag) })
	if err != nil || len(mine) != 2 || mine[0].Name != b.tag+"another" || mine[1].Name != name {
		t.Errorf("ListJobs: %+v, %v", mine, err)
	}
}

// sendings returns n sent events.
func sendings(n int) []driver.Sent {
	list := make([]driver.Sent, n)
	for i := range list {
		list[i] = driver.Sent{Key: waybill.NewID(), Event: waybill.NewID()}
	}
	return list
}

// remember sends in its own transaction, which fails with result.
func (b *env[T]) remember(ctx context.Context, t tb, a driver.JobAttempt, sent []driver.Sent, result error) (ok bool) {
	t.Helper()
	err := b.inTx(ctx, func(tx T) (err error) {
		if ok, err = b.DB.Jobs.RememberSent(ctx, tx, a, sent); err != nil {
			return err
		}
		return result
	})
	if !errors.Is(err, result) || result == nil && err != nil {
		t.Fatalf("RememberSent: %v", err)
	}
	return ok
}

// wantSent asserts the sent events of a job.
func (b *env[T]) wantSent(ctx context.Context, t tb, job string, want ...driver.Sent) {
	t.Helper()
	got, err := b.DB.Jobs.SentKeys(ctx, job, time.Hour)
	order := func(a, b driver.Sent) int { return cmp.Compare(string(a.Key[:]), string(b.Key[:])) }
	slices.SortFunc(got, order)
	if want = slices.SortedFunc(slices.Values(want), order); err != nil || !slices.Equal(got, want) {
		t.Errorf("the job has sent %d, want %d: %v", len(got), len(want), err)
	}
}

func jobSends[T any](ctx context.Context, t tb, b *env[T]) {
	a := b.claimJob(ctx, t, b.tag+"sends", time.Hour)
	other := b.claimJob(ctx, t, b.tag+"other", time.Hour)
	sent := sendings(150)
	if !b.remember(ctx, t, a, sent, errRollBack) {
		t.Errorf("it may not send")
	}
	b.wantSent(ctx, t, a.Name)
	if !b.remember(ctx, t, a, sent, nil) || !b.remember(ctx, t, other, sent[:1], nil) || !b.remember(ctx, t, a, nil, nil) {
		t.Errorf("it may not send")
	}
	b.wantSent(ctx, t, a.Name, sent...)
	b.wantSent(ctx, t, other.Name, sent[0])
	again := driver.Sent{Key: sent[3].Key, Event: waybill.NewID()}
	if !b.remember(ctx, t, a, []driver.Sent{again}, nil) {
		t.Errorf("it may not send again")
	}
	sent[3] = again
	b.wantSent(ctx, t, a.Name, sent...)
}

func jobSendsLate[T any](ctx context.Context, t tb, b *env[T]) {
	a := b.claimJob(ctx, t, b.tag+"late", time.Hour)
	sent := sendings(1)
	for what, wrong := range map[string]driver.JobAttempt{
		"another owner": {Name: a.Name, Owner: waybill.NewID(), Fence: 1}, "another fence": {Name: a.Name, Owner: a.Owner, Fence: 2},
		"no such job": {Name: a.Name + "x", Owner: a.Owner, Fence: 1},
	} {
		if b.remember(ctx, t, wrong, sent, nil) {
			t.Errorf("%s may send", what)
		}
	}
	lapsed := b.claimJob(ctx, t, b.tag+"lapsed", 0)
	if !b.remember(ctx, t, lapsed, sent, nil) {
		t.Errorf("sending failed after the lease expired, without a takeover")
	}
	b.claimJob(ctx, t, lapsed.Name, time.Hour)
	if b.remember(ctx, t, lapsed, sendings(1), nil) {
		t.Errorf("it may send after another run has taken over")
	}
	if ok, err := b.DB.Jobs.EndJob(ctx, a, driver.JobEnd{}); !ok || err != nil {
		t.Fatalf("EndJob: %v, %v", ok, err)
	}
	if b.remember(ctx, t, a, sent, nil) {
		t.Errorf("it may send after its end")
	}
	b.wantSent(ctx, t, a.Name)
	b.wantSent(ctx, t, lapsed.Name, sent...)
}

func jobSendsEnded[T any](ctx context.Context, t tb, b *env[T]) {
	a := b.claimJob(ctx, t, b.tag+"ended", time.Hour)
	tx := b.foreign(ctx, t)
	if err := tx.Commit(); err != nil {
		t.Fatalf("%v", err)
	}
	if _, err := b.DB.Jobs.RememberSent(ctx, tx.Tx, a, sendings(1)); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("RememberSent in a transaction that has ended: %v", err)
	}
	b.wantSent(ctx, t, a.Name)
}

// jobTakeOverWaits lets the lease of a run expire while it sends: the next run
// sees the sent events.
func jobTakeOverWaits[T any](ctx context.Context, t tb, b *env[T]) {
	a, tx, sent := b.sendSlowly(ctx, t)
	b.await(ctx, t, "the lease runs out", func() bool {
		rec, _, err := b.DB.Jobs.FindJob(ctx, a.Name)
		return err == nil && rec.Now.After(rec.LeaseUntil)
	})
	taken := make(chan error, 1)
	go func() {
		for {
			_, ok, err := b.DB.Jobs.ClaimJob(ctx, driver.JobClaim{Name: a.Name, Owner: waybill.NewID(), Lease: time.Hour, Seen: -1})
			if ok || err != nil {
				if got, serr := b.DB.Jobs.SentKeys(ctx, a.Name, time.Hour); err == nil && (serr != nil || !slices.Equal(got, sent)) {
					err = fmt.Errorf("the new run sees %d events: %w", len(got), errors.Join(serr, errors.New("want 1")))
				}
				taken <- err
				return
			}
			<-time.After(time.Millisecond)
		}
	}()
	select {
	case err := <-taken:
		t.Errorf("the job was taken over while it was sending: %v", err)
		return
	case <-time.After(200 * time.Millisecond):
		// Long enough for a claim that does not wait.
	}
	if err := tx.Commit(); err != nil {
		t.Fatalf("%v", err)
	}
	select {
	case err := <-taken:
		if err != nil {
			t.Errorf("%v", err)
		}
	case <-time.After(b.patience):
		t.Errorf("the takeover failed")
	}
}

// sendSlowly sends in a transaction that stays open. The lease is as short as
// the machine allows.
func (b *env[T]) sendSlowly(ctx context.Context, t tb) (driver.JobAttempt, Foreign[T], []driver.Sent) {
	t.Helper()
	sent := sendings(1)
	for lease := 200 * time.Millisecond; lease < b.patience; lease *= 2 {
		a := b.claimJob(ctx, t, b.tag+"slow"+lease.String(), lease)
		tx := b.foreign(ctx, t)
		ok, err := b.DB.Jobs.RememberSent(ctx, tx.Tx, a, sent)
		if err != nil {
			t.Fatalf("RememberSent: %v", err)
		}
		if ok {
			return a, tx, sent
		}
		if err := tx.Rollback(); err != nil {
			t.Fatalf("%v", err)
		}
	}
	t.Fatalf("nothing could be sent within a lease")
	return driver.JobAttempt{}, Foreign[T]{}, nil
}

func jobForgets[T any](ctx context.Context, t tb, b *env[T]) {
	a := b.claimJob(ctx, t, b.tag+"forgets", time.Hour)
	sent := sendings(5)
	b.remember(ctx, t, a, sent, nil)
	if n, err := b.DB.Jobs.ForgetSent(ctx, a.Name, time.Hour, 10); n != 0 || err != nil {
		t.Errorf("recently sent events were forgotten: %d, %v", n, err)
	}
	b.await(ctx, t, "the clock", func() bool {
		got, err := b.DB.Jobs.SentKeys(ctx, a.Name, time.Microsecond)
		return err == nil && len(got) == 0
	})
	other := b.claimJob(ctx, t, b.tag+"keeps", time.Hour)
	b.remember(ctx, t, other, sent, nil)
	if n, err := b.DB.Jobs.ForgetSent(ctx, a.Name, 0, 2); n != 2 || err != nil {
		t.Errorf("ForgetSent of 2: %d, %v", n, err)
	}
	if n, err := b.DB.Jobs.ForgetSent(ctx, a.Name, 0, 10); n != 3 || err != nil {
		t.Errorf("ForgetSent of the rest: %d, %v", n, err)
	}
	b.wantSent(ctx, t, a.Name)
	b.wantSent(ctx, t, other.Name, sent...)
	// The oldest is forgotten first; sending a key again makes it young.
	again := sendings(3)
	for _, one := range []driver.Sent{again[0], again[2], again[1], again[0]} {
		b.remember(ctx, t, a, []driver.Sent{one}, nil)
		start := b.jobClock(ctx, t, a.Name)
		b.await(ctx, t, "the clock", func() bool { return b.jobClock(ctx, t, a.Name).After(start) })
	}
	for _, left := range [][]driver.Sent{again[:2], again[:1]} {
		if n, err := b.DB.Jobs.ForgetSent(ctx, a.Name, 0, 1); n != 1 || err != nil {
			t.Errorf("ForgetSent of the oldest: %d, %v", n, err)
		}
		b.wantSent(ctx, t, a.Name, left...)
	}
	if n, err := b.DB.Jobs.ForgetSent(ctx, a.Name, 0, 0); n != 0 || err != nil {
		t.Errorf("ForgetSent of none: %d, %v", n, err)
	}
}

// jobClock returns the database's clock.
func (b *env[T]) jobClock(ctx context.Context, t tb, name string) time.Time {
	t.Helper()
	rec, _, err := b.DB.Jobs.FindJob(ctx, name)
	if err != nil {
		t.Fatalf("FindJob: %v", err)
	}
	return rec.Now
}

// unrecorded delivers events, some of which a group has recorded, and pages
// through the others.
func unrecorded[T any](ctx context.Context, t tb, b *env[T]) {
	leases := b.own(ctx, t)
	var evs []waybill.Event
	for range 12 {
		evs = append(evs, b.event(""))
	}
	b.write(ctx, t, evs...)
	rows := b.ready(ctx, t)
	b.settle(ctx, t, settlement(0, leases, results(rows)[:6]...))
	// One is still pending.
	b.settle(ctx, t, settlement(0, leases, results(rows)[6:11]...))
	group := b.tag + "group"
	in := store.InboxEntry{Group: group, Type: "x"}
	for _, n := range []int{2, 7} {
		in.Key, in.Event = rows[n].ID, rows[n].ID
		b.accept(ctx, t, waybill.NewID(), in)
	}
	now, err := b.DB.OutboxAdmin.Stats(ctx)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	span := driver.HistorySpan{From: now.Now.Add(-time.Hour), To: now.Now.Add(time.Hour)}
	found := map[waybill.ID]bool{}
	for pages := 0; ; pages++ {
		page, err := b.DB.HistoryAudit.DeliveredWithoutRecord(ctx, group, span, 4)
		if err != nil || pages > 3 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, r := range page {
			if found[r.ID] || r.State != store.Delivered || r.EndedAt.IsZero() || r.EndedAt.Before(span.From) {
				t.Errorf("page %d has %+v", pages, r)
			}
			found[r.ID] = true
			span.From, span.After = r.EndedAt, r.ID
		}
		if len(page) < 4 {
			break
		}
	}
	for i, row := range rows {
		if want := i != 2 && i != 7 && i != 11; found[row.ID] != want {
			t.Errorf("event %d was found: %v, want %v", i, found[row.ID], want)
		}
	}
	for what, span := range map[string]driver.HistorySpan{
		"before": {From: now.Now.Add(-2 * time.Hour), To: now.Now.Add(-time.Hour)}, "after": {From: now.Now.Add(time.Hour), To: now.Now.Add(2 * time.Hour)},
	} {
		if page, err := b.DB.HistoryAudit.DeliveredWithoutRecord(ctx, group, span, 10); err != nil || len(page) != 0 {
			t.Errorf("%s that: %d, %v", what, len(page), err)
		}
	}
	b.unrecordedBetween(ctx, t, group)
	if page, err := b.DB.HistoryAudit.DeliveredWithoutRecord(ctx, group+"x", driver.HistorySpan{From: now.Now.Add(-time.Hour), To: now.Now.Add(time.Hour)}, 100); err != nil || len(page) != 11 {
		t.Errorf("of a group without records: %d, %v", len(page), err)
	}
}

// unrecordedBetween asserts that spans begin and end exactly at the times of
// deliveries.
func (b *env[T]) unrecordedBetween(ctx context.Context, t tb, group string) {
	t.Helper()
	between := func(from, to time.Time) []waybill.ID {
		t.Helper()
		page, err := b.DB.HistoryAudit.DeliveredWithoutRecord(ctx, group, driver.HistorySpan{From: from, To: to}, 100)
		if err != nil {
			t.Fatalf("DeliveredWithoutRecord: %v", err)
		}
		return recordIDs(page)
	}
	now := b.now(ctx, t)
	all, err := b.DB.HistoryAudit.DeliveredWithoutRecord(ctx, group, driver.HistorySpan{From: now.Add(-time.Hour), To: now.Add(time.Hour)}, 100)
	if err != nil || !slices.IsSortedFunc(all, byEnd) {
		t.Fatalf("DeliveredWithoutRecord: %+v, %v", all, err)
	}
	for _, from := range all {
		for _, to := range all {
			var want []waybill.ID
			for _, r := range all {
				if !r.EndedAt.Before(from.EndedAt) && r.EndedAt.Before(to.EndedAt) {
					want = append(want, r.ID)
				}
			}
			if got := between(from.EndedAt, to.EndedAt); !slices.Equal(got, want) {
				t.Errorf("between %v and %v %d were found, want %d", from.EndedAt, to.EndedAt, len(got), len(want))
			}
		}
	}
}
