package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// auditChecks check the records of changes of the outbox, and the audit itself.
func auditChecks[T any]() []check[T] {
	return []check[T]{
		{row: "audit", name: "dead letters", run: auditsLetters[T]},
		{row: "audit", name: "purges", fresh: true, run: auditsPurges[T]},
		{row: "audit", name: "the outbox as a whole", fresh: true, run: auditsOutbox[T]},
		{row: "audit", name: "several transactions", run: auditsTransactions[T]},
		{row: "audit", name: "texts", run: auditsTexts[T]},
		{row: "audit", name: "list", run: listsAudit[T]},
		{row: "audit", name: "purge the audit", fresh: true, run: purgesAudit[T]},
	}
}

// backlogAuditChecks check the records of changes of destinations.
func backlogAuditChecks[T any]() []check[T] {
	return []check[T]{
		{row: "audit", name: "destinations", run: auditsDestinations[T]},
		{row: "audit", name: "dead letters of a backlog", run: auditsBacklog[T]},
	}
}

// inboxAuditChecks check the records of changes of inbox records.
func inboxAuditChecks[T any]() []check[T] {
	return []check[T]{{row: "audit", name: "redrive", run: auditsRedrive[T]}}
}

// keyAuditChecks check the records of changes of idempotency keys.
func keyAuditChecks[T any]() []check[T] {
	return []check[T]{{row: "audit", name: "keys", fresh: true, run: auditsKeys[T]}}
}

// changeBy returns the record of a change by an actor of this check.
func (b *env[T]) changeBy(actor string) driver.AuditRecord {
	return driver.AuditRecord{
		ID: waybill.NewID(), Actor: b.unique(actor), Via: "go", Address: "[::1]:1", Action: "change", Destination: "somewhere", Target: "type=Ü \\ ' %",
	}
}

// audit returns records that match, the newest first.
func (b *env[T]) audit(ctx context.Context, t tb, f driver.AuditFilter) []driver.AuditRecord {
	t.Helper()
	all, err := b.DB.Audit.ListAudit(ctx, f, driver.AuditCursor{}, 1000)
	if err != nil {
		t.Fatalf("ListAudit: %v", err)
	}
	return all
}

// newest returns the newest record that matches.
func (b *env[T]) newest(ctx context.Context, t tb, f driver.AuditFilter) driver.AuditRecord {
	t.Helper()
	all := b.audit(ctx, t, f)
	if len(all) == 0 {
		t.Fatalf("a change left no record")
	}
	return all[0]
}

// wantAudit asserts that a change has one record with this count; with 0, none.
func (b *env[T]) wantAudit(ctx context.Context, t tb, what string, want driver.AuditRecord, count int64) {
	t.Helper()
	var mine []driver.AuditRecord
	for _, rec := range b.audit(ctx, t, driver.AuditFilter{}) {
		if rec.ID == want.ID {
			mine = append(mine, rec)
		}
	}
	if count == 0 && len(mine) == 0 {
		return
	}
	if len(mine) != 1 || count == 0 {
		t.Errorf("%s: the records are %+v; want one with the count %d, or none for 0", what, mine, count)
		return
	}
	want.At, want.Count = mine[0].At, count
	if mine[0] != want {
		t.Errorf("%s: the record is %+v, want %+v", what, mine[0], want)
	}
	if mine[0].At.IsZero() || mine[0].At.Location() != time.UTC {
		t.Errorf("%s: the time of the record is %v, want a time in UTC", what, mine[0].At)
	}
}

// wantAudited asserts that a change leaves a record with this count if its
// context has one, and none if a repeated change changes nothing.
func (b *env[T]) wantAudited(ctx context.Context, t tb, what string, count int64, change func(ctx context.Context) error) {
	t.Helper()
	rec := b.changeBy("one")
	if err := change(driver.WithAudit(ctx, rec)); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	b.wantAudit(ctx, t, what, rec, count)
	rec = b.changeBy("another")
	if err := change(driver.WithAudit(ctx, rec)); err != nil && !errors.Is(err, driver.ErrNoDestination) {
		t.Fatalf("%s again: %v", what, err)
	}
	b.wantAudit(ctx, t, what+", again", rec, 0)
}

// wantUnaudited asserts that a change whose context has no record leaves none.
func (b *env[T]) wantUnaudited(ctx context.Context, t tb, what string, change func(ctx context.Context) error) {
	t.Helper()
	before := len(b.audit(ctx, t, driver.AuditFilter{}))
	if err := change(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if after := len(b.audit(ctx, t, driver.AuditFilter{})); after != before {
		t.Errorf("%s without a record in its context left %d", what, after-before)
	}
}

func auditsLetters[T any](ctx context.Context, t tb, b *env[T]) {
	dead := b.events(8, "")
	b.bury(ctx, t, func(_ int, r *driver.Result) { r.Holds = true }, dead...)
	b.auditsThese(ctx, t, b.DB.OutboxAdmin, idsOf(dead))
	for _, ev := range dead[:3] {
		b.awaitDue(ctx, t, ev.ID)
	}
}

// auditsThese unblocks, replays and discards 8 dead letters that block their
// aggregates; it replays the first three.
func (b *env[T]) auditsThese(ctx context.Context, t tb, rows driver.DeadLetters, ids []waybill.ID) {
	t.Helper()
	unblock := func(ids []waybill.ID) func(context.Context) error {
		return func(ctx context.Context) error { _, err := rows.Unblock(ctx, ids); return err }
	}
	replay := func(ids []waybill.ID) func(context.Context) error {
		return func(ctx context.Context) error { _, err := rows.Replay(ctx, ids); return err }
	}
	discard := func(ids []waybill.ID) func(context.Context) error {
		return func(ctx context.Context) error { _, err := rows.Discard(ctx, ids); return err }
	}
	b.wantUnaudited(ctx, t, "Unblock", unblock(ids[:1]))
	b.wantUnaudited(ctx, t, "Replay", replay(ids[:1]))
	b.wantUnaudited(ctx, t, "Discard", discard(ids[7:]))
	// Of these, some were changed before.
	b.wantAudited(ctx, t, "Unblock", 2, unblock([]waybill.ID{ids[3], ids[4], waybill.NewID()}))
	b.wantAudited(ctx, t, "Replay", 2, replay(ids[:3]))
	b.wantAudited(ctx, t, "Discard", 4, discard(ids[3:]))
}

func auditsPurges[T any](ctx context.Context, t tb, b *env[T]) {
	b.bury(ctx, t, nil, b.events(2, "a")...)
	done := b.events(3, "a")
	b.endOneByOne(ctx, t, 0, b.writeRows(ctx, t, done...)...)
	b.write(ctx, t, b.events(4, "a")...)
	b.tick(ctx, t)
	purge := func(state store.State) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.DB.OutboxAdmin.Purge(ctx, state, 0, 100); return err }
	}
	b.wantAudited(ctx, t, "Purge of dead letters", 2, purge(store.Dead))
	b.wantAudited(ctx, t, "Purge of delivered events", 3, purge(store.Delivered))
	b.wantAudited(ctx, t, "PurgeWritten", 4, func(ctx context.Context) error {
		_, err := b.DB.OutboxAdmin.PurgeWritten(ctx, 0, 100)
		return err
	})
}

// auditsOutbox changes the outbox as a whole; a refused change leaves no
// record.
func auditsOutbox[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	changes := map[string]func(context.Context) error{
		"SetLanes": func(ctx context.Context) error { return b.DB.OutboxAdmin.SetLanes(ctx, b.lanes) },
	}
	if b.DB.Restorer != nil {
		changes["Restored"] = func(ctx context.Context) error { return b.DB.Restorer.Restored(ctx, false) }
	}
	for name, change := range changes {
		rec := b.changeBy(name)
		if err := change(driver.WithAudit(ctx, rec)); !errors.Is(err, store.ErrRelayLive) {
			t.Errorf("%s beside a live relay returned %v, want ErrRelayLive", name, err)
		}
		b.wantAudit(ctx, t, name+", refused", rec, 0)
	}
	if err := b.DB.Relay.Leave(ctx, n); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	for name, change := range changes {
		rec := b.changeBy(name)
		if err := change(driver.WithAudit(ctx, rec)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b.wantAudit(ctx, t, name, rec, 1)
		b.wantUnaudited(ctx, t, name, change)
	}
}

// auditsTransactions makes one change in several transactions: the first record
// stays, and counts are added.
func auditsTransactions[T any](ctx context.Context, t tb, b *env[T]) {
	dead := b.events(5, "")
	b.bury(ctx, t, nil, dead...)
	rec, other := b.changeBy("one"), b.changeBy("other")
	var at time.Time
	for i, part := range [][]waybill.Event{dead[:2], dead[2:3], dead[3:4]} {
		with := rec
		if i == 2 {
			with.Actor, with.Target = "another actor", "something else"
		}
		b.discard(driver.WithAudit(ctx, with), t, part...)
		b.tick(ctx, t)
		found := b.audit(ctx, t, driver.AuditFilter{Actor: rec.Actor})
		if len(found) != 1 || i > 0 && !found[0].At.Equal(at) {
			t.Fatalf("after transaction %d the records are %+v; want one from %v", i+1, found, at)
		}
		at = found[0].At
	}
	b.discard(driver.WithAudit(ctx, other), t, dead[4:]...)
	b.wantAudit(ctx, t, "four rows in three transactions", rec, 4)
	b.wantAudit(ctx, t, "another change", other, 1)
}

// auditsTexts records texts that are too long or not valid.
func auditsTexts[T any](ctx context.Context, t tb, b *env[T]) {
	dead := b.events(1, "")
	b.bury(ctx, t, nil, dead...)
	rec := b.changeBy(strings.Repeat("ü", 300))
	rec.Via, rec.Address, rec.Action, rec.Destination = strings.Repeat("v", 300), "a\x00\xff", strings.Repeat("a", 300), strings.Repeat("d", 300)
	rec.Target = strings.Repeat("t", 5000)
	b.discard(driver.WithAudit(ctx, rec), t, dead...)
	want, _ := driver.AuditOf(driver.WithAudit(ctx, rec))
	if len(want.Actor) > 255 || len(want.Action) > 64 || len(want.Target) != 4000 || want.Address != "a??" {
		t.Errorf("AuditOf returned %+v", want)
	}
	b.wantAudit(ctx, t, "long texts", want, 1)
}

// beyond returns a time in a year that a table may not be able to store.
func beyond(year int) time.Time {
	return time.Date(year, 2, 3, 4, 5, 6, 7, time.FixedZone("", -5*3600))
}

// listsAudit lists records of two actors and two actions.
func listsAudit[T any](ctx context.Context, t tb, b *env[T]) {
	dead := b.events(6, "")
	b.bury(ctx, t, nil, dead...)
	var all []driver.AuditRecord
	for i, ev := range dead {
		rec := b.changeBy([]string{"one", "two"}[i%2])
		rec.Action = b.unique([]string{"x", "y", "x"}[i/2])
		b.discard(driver.WithAudit(ctx, rec), t, ev)
		b.tick(ctx, t)
		all = append(all, b.newest(ctx, t, driver.AuditFilter{Actor: rec.Actor}))
	}
	slices.Reverse(all) // the newest first
	one, x := b.unique("one"), b.unique("x")
	for name, c := range map[string]struct {
		f    driver.AuditFilter
		want []driver.AuditRecord
	}{
		"an actor":               {driver.AuditFilter{Actor: one}, []driver.AuditRecord{all[1], all[3], all[5]}},
		"an action":              {driver.AuditFilter{Action: x}, []driver.AuditRecord{all[0], all[1], all[4], all[5]}},
		"an actor and an action": {driver.AuditFilter{Actor: one, Action: x}, []driver.AuditRecord{all[1], all[5]}},
		"since":                  {driver.AuditFilter{Action: x, Since: all[4].At}, []driver.AuditRecord{all[0], all[1], all[4]}},
		"until":                  {driver.AuditFilter{Action: x, Until: all[1].At}, []driver.AuditRecord{all[4], all[5]}},
		"since just behind one":  {driver.AuditFilter{Action: x, Since: all[4].At.Add(time.Nanosecond)}, []driver.AuditRecord{all[0], all[1]}},
		"until just behind one":  {driver.AuditFilter{Action: x, Until: all[4].At.Add(time.Nanosecond)}, []driver.AuditRecord{all[4], all[5]}},
		"years beyond a table's": {driver.AuditFilter{Action: x, Since: beyond(1), Until: beyond(12345)}, []driver.AuditRecord{all[0], all[1], all[4], all[5]}},
		"another actor":          {driver.AuditFilter{Actor: b.unique("three")}, nil},
	} {
		if got := b.audit(ctx, t, c.f); !slices.Equal(got, c.want) {
			t.Errorf("ListAudit of %s returned %+v, want %+v", name, got, c.want)
		}
	}
	var paged []driver.AuditRecord
	var cursor driver.AuditCursor
	for range len(all) + 1 {
		page, err := b.DB.Audit.ListAudit(ctx, driver.AuditFilter{Since: all[5].At, Until: all[0].At.Add(time.Microsecond)}, cursor, 2)
		if err != nil || len(page) > 2 {
			t.Fatalf("ListAudit of 2 returned %d, %v", len(page), err)
		}
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
		last := page[len(page)-1]
		cursor = driver.AuditCursor{At: last.At, ID: last.ID}
	}
	if !slices.Equal(paged, all) {
		t.Errorf("the pages of the audit are %+v, want %+v", paged, all)
	}
}

func purgesAudit[T any](ctx context.Context, t tb, b *env[T]) {
	dead := b.events(4, "")
	b.bury(ctx, t, nil, dead...)
	var all []driver.AuditRecord
	for _, ev := range dead {
		rec := b.changeBy("one")
		b.discard(driver.WithAudit(ctx, rec), t, ev)
		b.tick(ctx, t)
		all = append(all, b.newest(ctx, t, driver.AuditFilter{}))
	}
	for _, c := range []struct {
		age         time.Duration
		limit, gone int
	}{{time.Hour, 10, 0}, {0, 0, 0}, {0, 3, 3}, {0, 10, 1}, {0, 10, 0}} {
		n, err := b.DB.Audit.PurgeAudit(ctx, c.age, c.limit)
		if err != nil || n != c.gone {
			t.Errorf("PurgeAudit of %d older than %v returned %d, %v; want %d", c.limit, c.age, n, err, c.gone)
		}
		all = all[min(n, len(all)):] // the oldest first
		left := b.audit(ctx, t, driver.AuditFilter{})
		slices.Reverse(left)
		if !slices.Equal(left, all) {
			t.Errorf("PurgeAudit left %+v, want %+v", left, all)
		}
	}
	if _, err := b.DB.Audit.PurgeAudit(ctx, -time.Second, 10); err == nil {
		t.Errorf("PurgeAudit accepts a negative age")
	}
}

func auditsDestinations[T any](ctx context.Context, t tb, b *env[T]) {
	db := b.DB.Backlogs
	b.wantUnaudited(ctx, t, "AddDestinations", func(ctx context.Context) error { _, err := db.AddDestinations(ctx, "a"); return err })
	b.wantAudited(ctx, t, "AddDestinations", 2, func(ctx context.Context) error { _, err := db.AddDestinations(ctx, "a", "b", "c"); return err })
	b.wantAudited(ctx, t, "PauseDestination", 1, func(ctx context.Context) error { _, err := db.PauseDestination(ctx, "b", "why"); return err })
	b.wantAudited(ctx, t, "ResumeDestination", 1, func(ctx context.Context) error { _, err := db.ResumeDestination(ctx, "b"); return err })
	rec := b.changeBy("probe")
	if err := db.ProbeDestination(driver.WithAudit(ctx, rec), "b"); err != nil {
		t.Fatalf("ProbeDestination: %v", err)
	}
	b.wantAudit(ctx, t, "ProbeDestination", rec, 1)
	rec = b.changeBy("unknown")
	if err := db.ProbeDestination(driver.WithAudit(ctx, rec), "unknown"); !errors.Is(err, driver.ErrNoDestination) {
		t.Errorf("ProbeDestination of an unknown destination returned %v", err)
	}
	b.wantAudit(ctx, t, "ProbeDestination of an unknown destination", rec, 0)

	number := b.register(ctx, t, "b")[0]
	leases := b.own(ctx, t)
	b.fill(ctx, t, leases, []int{number}, b.events(3, "a")...)
	q := driver.HistoryQuery{Types: []string{"thing.happened"}, AggregateID: b.unique("a")}
	to := b.register(ctx, t, "c")[0]
	b.wantAudited(ctx, t, "Refill", 3, func(ctx context.Context) error {
		_, err := b.backlog(to).Refill(ctx, q, driver.HistoryCursor{}, 100)
		return err
	})
	rec = b.changeBy("refused")
	if _, err := db.RemoveDestination(driver.WithAudit(ctx, rec), "b"); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("RemoveDestination beside a live relay returned %v", err)
	}
	b.wantAudit(ctx, t, "RemoveDestination, refused", rec, 0)
	b.end()
	b.wantAudited(ctx, t, "RemoveDestination", 4, func(ctx context.Context) error { _, err := db.RemoveDestination(ctx, "b"); return err })
}

func auditsBacklog[T any](ctx context.Context, t tb, b *env[T]) {
	number := b.register(ctx, t, "a")[0]
	leases := b.own(ctx, t)
	rows := b.fill(ctx, t, leases, []int{number}, b.events(10, "")...)
	s := driver.Settlement{Leases: leases}
	for _, row := range rows {
		r := result(row)
		r.Attempts, r.Error, r.Holds = 3, "boom", true
		s.Dead = append(s.Dead, r)
	}
	if _, err := b.backlog(number).Settle(ctx, s); err != nil {
		t.Fatalf("Settle: %v", err)
	}
	b.end()
	b.auditsThese(ctx, t, b.backlog(number), rowIDs(rows[:8]))
	b.tick(ctx, t)
	b.wantAudited(ctx, t, "PurgeDead", 2, func(ctx context.Context) error {
		_, err := b.backlog(number).PurgeDead(ctx, 0, 100)
		return err
	})
}

func auditsRedrive[T any](ctx context.Context, t tb, b *env[T]) {
	group := b.unique("group")
	var keys []waybill.ID
	for range 4 {
		in := store.InboxEntry{Group: group, Key: waybill.NewID(), Event: waybill.NewID(), Type: "A"}
		owner := waybill.NewID()
		if _, ok, err := b.DB.Inbox.ClaimEvent(ctx, in, owner, time.Hour, 5, nil); !ok || err != nil {
			t.Fatalf("ClaimEvent: %v, %v", ok, err)
		}
		if ok, err := b.DB.Inbox.FailEvent(ctx, in, driver.Failure{Owner: owner, Fence: 1, Dead: true, Error: "boom"}); !ok || err != nil {
			t.Fatalf("FailEvent: %v, %v", ok, err)
		}
		keys = append(keys, in.Key)
	}
	named := b.changeBy("named")
	if n, err := b.DB.InboxRecords.Redrive(driver.WithAudit(ctx, named), group, keys[:2], 10); n != 2 || err != nil {
		t.Fatalf("Redrive: %d, %v", n, err)
	}
	b.wantAudit(ctx, t, "Redrive of two records", named, 2)
	b.wantAudited(ctx, t, "Redrive", 2, func(ctx context.Context) error {
		_, err := b.DB.InboxRecords.Redrive(ctx, group, nil, 10)
		return err
	})
}

func auditsKeys[T any](ctx context.Context, t tb, b *env[T]) {
	for _, end := range []driver.KeyEnd{answered("by hand"), failed("again")} {
		c := b.claim("key " + end.State.String())
		a := b.claimed(ctx, t, c)
		b.point(ctx, t, a, "paid")
		if !b.endKey(ctx, t, a, driver.KeyEnd{State: store.KeyUncertain, Error: "unknown"}) {
			t.Fatalf("the attempt did not end")
		}
		end.Answer.Retention = time.Millisecond
		b.wantAudited(ctx, t, "ResolveKey as "+end.State.String(), 1, func(ctx context.Context) error {
			_, err := b.DB.KeyRecords.ResolveKey(ctx, c.KeyID, end)
			return err
		})
	}
	purge := b.changeBy("purge")
	purged := 0
	b.await(ctx, t, "the keys expire", func() bool {
		n, err := b.DB.KeyRecords.PurgeKeys(driver.WithAudit(ctx, purge), 100)
		if err != nil {
			t.Fatalf("PurgeKeys: %v", err)
		}
		purged += n
		return purged >= 2
	})
	b.wantAudit(ctx, t, "PurgeKeys", purge, int64(purged))
}
