package drivertest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// recordChecks check the fences of inbox records, and what operators and the
// purge do with records.
func recordChecks[T any]() []check[T] {
	return []check[T]{
		{row: "claim_events", name: "a claim needs the same content", run: claimsContent[T]},
		{row: "claim_events", name: "ends need group, key, owner and fence", run: claimEnds[T]},
		{row: "due_records", name: "redrive", run: redrives[T]},
		{row: "due_records", name: "list by filter, in pages", run: listsRecords[T]},
		{row: "due_records", name: "counts of groups", run: countsRecords[T]},
		{row: "due_records", name: "purge in batches, the oldest first", run: purgesRecords[T]},
	}
}

// claimEvent claims an event that is free, under the fence 1.
func (b *env[T]) claimEvent(ctx context.Context, t tb, in store.InboxEntry, lease time.Duration) driver.Attempt {
	t.Helper()
	owner := waybill.NewID()
	if rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, owner, lease, 5, []byte("event")); !ok || err != nil {
		t.Fatalf("ClaimEvent: %+v, %v, %v", rec, ok, err)
	}
	return driver.Attempt{Group: in.Group, Key: in.Key, Owner: owner, Fence: 1}
}

// failEvent records a failure of an event without a record.
func (b *env[T]) failEvent(ctx context.Context, t tb, in store.InboxEntry, f driver.Failure) {
	t.Helper()
	f.Stored = []byte("event")
	if ok, err := b.DB.Inbox.FailEvent(ctx, in, f); !ok || err != nil {
		t.Fatalf("FailEvent: %v, %v", ok, err)
	}
}

// intakes returns events of a group of this check, in the order of their keys.
func (b *env[T]) intakes(group string, n int) []store.InboxEntry {
	in := make([]store.InboxEntry, n)
	for i := range in {
		in[i] = b.intake(b.unique(group))
	}
	return in
}

// unchanged creates records beside that of an event: of its group, and of its
// key in another group. It returns a function that asserts that they are as
// they were.
func (b *env[T]) unchanged(ctx context.Context, t tb, in store.InboxEntry) func() {
	t.Helper()
	var others []store.InboxEntry
	for i, group := range []string{in.Group, in.Group, in.Group, in.Group, b.unique("beside")} {
		one := b.intake(group)
		switch i {
		case 0:
			b.accept(ctx, t, waybill.NewID(), one)
		case 1:
			b.claimEvent(ctx, t, one, 0)
		case 2:
			b.failEvent(ctx, t, one, driver.Failure{Dead: true})
		case 3:
			b.failEvent(ctx, t, one, driver.Failure{})
		case 4:
			one.Key = in.Key
			b.failEvent(ctx, t, one, driver.Failure{})
		}
		others = append(others, one)
	}
	var before []store.InboxRecord
	for _, one := range others {
		before = append(before, b.record(ctx, t, one))
	}
	return func() {
		t.Helper()
		for i, one := range others {
			after := b.record(ctx, t, one)
			after.Now = before[i].Now
			want(t, "a record beside it", after, before[i])
		}
	}
}

// claimsContent claims an event that is due under the key of another one: the
// record stays, even if it has no attempts left.
func claimsContent[T any](ctx context.Context, t tb, b *env[T]) {
	for name, fail := range map[string]func(in store.InboxEntry){
		"failed": func(in store.InboxEntry) { b.failEvent(ctx, t, in, driver.Failure{}) },
		"lapsed": func(in store.InboxEntry) { b.claimEvent(ctx, t, in, 0) },
	} {
		in := b.intake(b.unique("content"))
		fail(in)
		before := b.record(ctx, t, in)
		kind, hash := in, in
		kind.Type += "x"
		hash.Hash[15]++
		for what, other := range map[string]store.InboxEntry{"type": kind, "hash": hash} {
			for _, attempts := range []int{1, 5} {
				rec, ok, err := b.DB.Inbox.ClaimEvent(ctx, other, waybill.NewID(), time.Hour, attempts, nil)
				if ok || err != nil || rec.InboxEntry != in {
					t.Errorf("%s: a claim with another %s: %+v, %v, %v", name, what, rec, ok, err)
				}
				after := b.record(ctx, t, in)
				after.Now = before.Now
				want(t, name+", after a claim with another "+what, after, before)
			}
		}
		if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, waybill.NewID(), time.Hour, 2, nil); !ok || err != nil {
			t.Errorf("%s: the last attempt: %v, %v", name, ok, err)
		}
	}
}

// claimEnds ends attempts that do not hold the record.
func claimEnds[T any](ctx context.Context, t tb, b *env[T]) {
	in := b.intakes("ends", 1)[0]
	defer b.unchanged(ctx, t, in)()
	a := b.claimEvent(ctx, t, in, time.Hour)
	before := b.record(ctx, t, in)
	group, key, owner, later, earlier := a, a, a, a, a
	group.Group, key.Key, owner.Owner, later.Fence, earlier.Fence = strings.ToUpper(a.Group), waybill.NewID(), waybill.NewID(), 2, -1
	for what, wrong := range map[string]driver.Attempt{
		"another group": group, "another key": key, "another owner": owner, "a later fence": later, "an earlier fence": earlier,
	} {
		if ok, err := b.DB.Inbox.ReleaseEvent(ctx, wrong); ok || err != nil {
			t.Errorf("%s released the event: %v, %v", what, ok, err)
		}
		stranger := in
		stranger.Group, stranger.Key = wrong.Group, wrong.Key
		for _, dead := range []bool{false, true} {
			if ok, err := b.DB.Inbox.FailEvent(ctx, stranger, driver.Failure{Owner: wrong.Owner, Fence: wrong.Fence, Dead: dead}); ok || err != nil {
				t.Errorf("%s failed the event: %v, %v", what, ok, err)
			}
		}
		err := b.inTx(ctx, func(tx T) error {
			ok, err := b.DB.Inbox.Succeed(ctx, tx, wrong)
			if ok {
				t.Errorf("%s succeeded", what)
			}
			return err
		})
		if err != nil {
			t.Errorf("Succeed: %v", err)
		}
	}
	after := b.record(ctx, t, in)
	after.Now = before.Now
	want(t, "the record after other attempts", after, before)
	if ok, err := b.DB.Inbox.FailEvent(ctx, in, driver.Failure{Owner: a.Owner, Fence: 1, Delay: time.Hour, Stored: []byte("newer")}); !ok || err != nil {
		t.Errorf("FailEvent: %v, %v", ok, err)
	}
	rec := b.record(ctx, t, in)
	wantFields(t, "after the failure", rec, func(w *store.InboxRecord) {
		w.State, w.Attempts, w.Stored, w.ProcessedAt = store.InboxFailed, 1, []byte("newer"), time.Time{}
	})
	if left := rec.NextRetryAt.Sub(rec.Now); left < 59*time.Minute || left > time.Hour {
		t.Errorf("a retry in an hour is due in %v", left)
	}
}

// redrives redrives dead records of a group, and named ones.
func redrives[T any](ctx context.Context, t tb, b *env[T]) {
	in, other := b.intakes("redrive", 7), b.intakes("REDRIVE", 1)[0]
	other.Key = in[0].Key
	for _, one := range append(slices.Clone(in[:4]), other) {
		b.failEvent(ctx, t, one, driver.Failure{Dead: true, Error: "dead"})
	}
	b.failEvent(ctx, t, in[4], driver.Failure{Delay: time.Hour})
	b.claimEvent(ctx, t, in[5], time.Hour)
	b.accept(ctx, t, waybill.NewID(), in[6])
	redrive := func(what string, limit, n int, keys ...waybill.ID) {
		t.Helper()
		if got, err := b.DB.Inbox.Redrive(ctx, in[0].Group, keys, limit); got != n || err != nil {
			t.Errorf("Redrive of %s: %d, %v; want %d", what, got, err, n)
		}
	}
	dead := func() (n int) {
		t.Helper()
		for _, one := range in {
			if b.record(ctx, t, one).State == store.InboxDead {
				n++
			}
		}
		return n
	}
	redrive("none", 0, 0)
	redrive("two dead records", 2, 2)
	if n := dead(); n != 2 {
		t.Errorf("after Redrive of two of four dead records %d are dead", n)
	}
	redrive("all dead records", 10, 2)
	redrive("no dead records", 10, 0)
	if rec := b.record(ctx, t, in[4]); !rec.NextRetryAt.After(rec.Now) {
		t.Errorf("Redrive of dead records made a failed one due")
	}
	redrive("records by key", 10, 1, in[4].Key, in[5].Key, in[6].Key, waybill.NewID())
	redrive("at most one record by key", 1, 1, in[0].Key, in[1].Key)
	for i, one := range in[:5] {
		rec := b.record(ctx, t, one)
		wantFields(t, "a redriven record", rec, func(w *store.InboxRecord) {
			w.State, w.Attempts, w.Fence, w.Owner, w.LeaseUntil, w.ProcessedAt = store.InboxFailed, 0, 1, waybill.ID{}, time.Time{}, time.Time{}
		})
		if rec.NextRetryAt.IsZero() || rec.NextRetryAt.After(rec.Now) {
			t.Errorf("redriven, record %d is due at %v; it is %v", i, rec.NextRetryAt, rec.Now)
		}
	}
	for one, state := range map[store.InboxEntry]store.InboxState{in[5]: store.InboxProcessing, in[6]: store.InboxSucceeded, other: store.InboxDead} {
		if rec := b.record(ctx, t, one); rec.State != state {
			t.Errorf("Redrive of others changed a record from %v to %v", state, rec.State)
		}
	}
	if due, err := b.DB.Inbox.DueRecords(ctx, in[0].Group, 10); err != nil || len(due) != 5 {
		t.Errorf("%d are due, %v; want the 5 that were redriven", len(due), err)
	}
}

// listsRecords lists records of two groups, which differ in state and attempts.
func listsRecords[T any](ctx context.Context, t tb, b *env[T]) {
	in := append(b.intakes("list a", 5), b.intakes("list b", 2)...)
	b.failEvent(ctx, t, in[0], driver.Failure{Dead: true})
	b.claimEvent(ctx, t, in[1], time.Hour)
	b.failEvent(ctx, t, in[2], driver.Failure{})
	b.accept(ctx, t, waybill.NewID(), in[3])
	for range 2 { // two attempts
		if _, _, err := b.DB.Inbox.ClaimEvent(ctx, in[4], waybill.NewID(), 0, 5, nil); err != nil {
			t.Fatalf("ClaimEvent: %v", err)
		}
	}
	b.failEvent(ctx, t, in[5], driver.Failure{})
	b.accept(ctx, t, waybill.NewID(), in[6])
	all := []store.InboxState{store.InboxProcessing, store.InboxSucceeded, store.InboxFailed, store.InboxDead}
	for what, c := range map[string]struct {
		filter store.RecordFilter
		want   []store.InboxEntry
	}{
		"what did not succeed":   {store.RecordFilter{Group: in[0].Group}, []store.InboxEntry{in[0], in[1], in[2], in[4]}},
		"another group":          {store.RecordFilter{Group: in[5].Group}, in[5:6]},
		"everything":             {store.RecordFilter{Group: in[0].Group, States: all}, in[:5]},
		"in processing":          {store.RecordFilter{Group: in[0].Group, States: all[:1]}, []store.InboxEntry{in[1], in[4]}},
		"succeeded":              {store.RecordFilter{Group: in[0].Group, States: all[1:2]}, in[3:4]},
		"failed and dead":        {store.RecordFilter{Group: in[0].Group, States: all[2:]}, []store.InboxEntry{in[0], in[2]}},
		"tried twice":            {store.RecordFilter{Group: in[0].Group, MinAttempts: 2}, in[4:5]},
		"tried twice and failed": {store.RecordFilter{Group: in[0].Group, States: all[2:3], MinAttempts: 2}, nil},
	} {
		for _, page := range []int{1, 2, 100} {
			var got []store.InboxEntry
			var key waybill.ID
			for last := page; last == page; {
				records, err := b.DB.Inbox.ListRecords(ctx, c.filter, c.filter.Group, key, page)
				if err != nil || len(records) > page {
					t.Fatalf("ListRecords of %d: %d, %v", page, len(records), err)
				}
				for _, r := range records {
					got, key = append(got, r.InboxEntry), r.Key
				}
				last = len(records)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, in pages of %d: %+v, want %+v", what, page, got, c.want)
			}
		}
	}
	if _, err := b.DB.Inbox.ListRecords(ctx, store.RecordFilter{States: []store.InboxState{4}}, "", waybill.ID{}, 1); err == nil {
		t.Errorf("ListRecords accepts an unknown state")
	}
	if got, err := b.DB.Inbox.ListRecords(ctx, store.RecordFilter{Group: in[0].Group}, "", waybill.ID{}, 0); len(got) > 0 || err != nil {
		t.Errorf("ListRecords of none: %d, %v", len(got), err)
	}
}

// countsRecords counts the records of groups.
func countsRecords[T any](ctx context.Context, t tb, b *env[T]) {
	open, quiet := b.intakes("open", 8), b.intakes("quiet", 2)
	b.claimEvent(ctx, t, open[0], time.Hour)
	b.failEvent(ctx, t, open[1], driver.Failure{Delay: time.Hour})
	b.failEvent(ctx, t, open[2], driver.Failure{Delay: time.Hour})
	for _, one := range open[3:6] {
		b.failEvent(ctx, t, one, driver.Failure{Dead: true})
	}
	for range 3 { // more attempts than a failed record has
		if _, _, err := b.DB.Inbox.ClaimEvent(ctx, open[6], waybill.NewID(), 0, 5, nil); err != nil {
			t.Fatalf("ClaimEvent: %v", err)
		}
	}
	b.accept(ctx, t, waybill.NewID(), append(quiet, open[7])...)
	counts := func(all bool) map[string]store.GroupStats {
		t.Helper()
		list, err := b.DB.Inbox.GroupStats(ctx, all)
		if err != nil || !slices.IsSortedFunc(list, func(x, y store.GroupStats) int { return strings.Compare(x.Group, y.Group) }) {
			t.Fatalf("GroupStats: %+v, %v", list, err)
		}
		groups := map[string]store.GroupStats{}
		for _, g := range list {
			groups[g.Group] = g
		}
		return groups
	}
	expected := store.GroupStats{Group: open[0].Group, Processing: 2, Failed: 2, Dead: 3, HighestAttempts: 1}
	for _, all := range []bool{false, true} {
		groups := counts(all)
		if got := groups[open[0].Group]; got != expected {
			t.Errorf("the group is counted as %+v, want %+v", got, expected)
		}
		if got, ok := groups[quiet[0].Group]; ok != all || got.Processing+got.Failed+got.Dead > 0 {
			t.Errorf("with all %v, a group whose records succeeded is counted as %+v, %v", all, got, ok)
		}
	}
	b.failEvent(ctx, t, b.intake(open[0].Group), driver.Failure{})
	expected.Failed++
	b.await(ctx, t, "a record is due", func() bool { return counts(false)[open[0].Group].OldestDue > 0 })
	got := counts(false)[open[0].Group]
	if expected.OldestDue = got.OldestDue; got != expected || got.OldestDue > time.Hour {
		t.Errorf("with a record that is due, the group is counted as %+v, want %+v", got, expected)
	}
}

// purgesRecords purges the records of successes, at different times.
func purgesRecords[T any](ctx context.Context, t tb, b *env[T]) {
	in, other := b.intakes("purge", 6), b.intakes("PURGE", 1)[0]
	other.Key = in[2].Key
	b.failEvent(ctx, t, in[4], driver.Failure{Dead: true})
	b.failEvent(ctx, t, in[5], driver.Failure{})
	clock := func() time.Time { return b.record(ctx, t, in[5]).Now }
	for _, one := range []store.InboxEntry{other, in[2], in[0], in[3], in[1]} {
		b.accept(ctx, t, waybill.NewID(), one)
		start := clock()
		b.await(ctx, t, "the database's clock moves", func() bool { return clock().After(start) })
	}
	purge := func(age time.Duration, limit, n int) {
		t.Helper()
		if got, err := b.DB.Inbox.PurgeRecords(ctx, in[0].Group, age, limit); got != n || err != nil {
			t.Errorf("PurgeRecords of %d older than %v: %d, %v; want %d", limit, age, got, err, n)
		}
	}
	left := func(want ...store.InboxEntry) {
		t.Helper()
		for i, one := range append(slices.Clone(in), other) {
			_, there, err := b.DB.Inbox.FindRecord(ctx, one.Group, one.Key)
			if err != nil || there != slices.Contains(want, one) {
				t.Errorf("record %d is there: %v, %v", i, there, err)
			}
		}
	}
	purge(time.Hour, 10, 0)
	purge(0, 0, 0)
	purge(0, 2, 2)
	left(in[1], in[3], in[4], in[5], other)
	purge(0, 10, 2)
	purge(0, 10, 0)
	left(in[4], in[5], other)
	if _, err := b.DB.Inbox.PurgeRecords(ctx, in[0].Group, -time.Second, 10); err == nil {
		t.Errorf("PurgeRecords accepts a negative age")
	}
}
