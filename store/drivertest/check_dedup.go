package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// dedupChecks check that there is at most one pending event per tenant and
// dedup key.
func dedupChecks[T any]() []check[T] {
	return []check[T]{
		{row: "dedup_key_absorbs_repeats", name: "absorbed while pending", run: absorbed[T]},
		{row: "dedup_key_absorbs_repeats", name: "absorbed while delayed", run: absorbedByDelayed[T]},
		{row: "dedup_key_absorbs_repeats", name: "absorbed after another event is done", suite: relaySuite, run: absorbedAfterAnother[T]},
		{row: "dedup_key_absorbs_repeats", name: "absorbed while deferred", suite: relaySuite, run: absorbedByDeferred[T]},
		{row: "dedup_key_absorbs_repeats", name: "accepted again after done", suite: relaySuite, run: keyFreedBy[T](func(s *driver.Settlement, r driver.Result) {
			s.Done, s.History = []driver.Result{r}, true
		})},
		{row: "dedup_key_absorbs_repeats", name: "accepted again after done without history", suite: relaySuite, fresh: true, run: keyFreedBy[T](
			func(s *driver.Settlement, r driver.Result) { s.Done = []driver.Result{r} })},
		{row: "dedup_key_absorbs_repeats", name: "accepted again after dead-lettering", suite: relaySuite, run: keyFreedBy[T](func(s *driver.Settlement, r driver.Result) {
			s.Dead = []driver.Result{r}
		})},
		{row: "dedup_key_absorbs_repeats", name: "accepted again after a rollback", run: keyFreedByRollback[T]},
		{row: "dedup_key_absorbs_repeats", name: "tenants are separate", run: tenantsApart[T]},
		{row: "dedup_key_absorbs_repeats", name: "tenants are freed separately", suite: relaySuite, run: tenantsFreedApart[T]},
		{row: "dedup_key_absorbs_repeats", name: "keys compare as bytes", run: keysAsBytes[T]},
		{row: "dedup_key_absorbs_repeats", name: "twice in one write", run: sameKeyTwice[T]},
		{row: "dedup_key_absorbs_repeats", name: "different facts", run: differentFacts[T]},
	}
}

// receipts writes events in one transaction and returns their receipts.
func receipts[T any](ctx context.Context, t tb, box *outbox.Outbox[T], evs ...waybill.Event) []outbox.Receipt {
	t.Helper()
	var out []outbox.Receipt
	err := box.InTx(ctx, func(ctx context.Context, tx T) (err error) {
		out, err = box.WriteEach(ctx, tx, evs...)
		return err
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	return out
}

func written(ev waybill.Event) outbox.Receipt {
	return outbox.Receipt{ID: ev.ID, Outcome: outbox.Written}
}

func duplicateOf(ev waybill.Event) outbox.Receipt {
	return outbox.Receipt{ID: ev.ID, Outcome: outbox.Duplicate}
}

func wantReceipts(t tb, got []outbox.Receipt, want ...outbox.Receipt) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the receipts are %v, want %v", got, want)
	}
}

func absorbed[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	first, second, other := b.keyed("a", "k"), b.keyed("b", "k"), b.event("a")
	wantReceipts(t, receipts(ctx, t, box, first), written(first))
	wantReceipts(t, receipts(ctx, t, box, second), duplicateOf(first))
	// Each event has its own receipt, absorbed or not, and the written ones
	// keep their order.
	third := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, box, third, other), duplicateOf(first), written(other))
	// absorbed, although Write returns no receipt
	b.write(ctx, t, b.keyed("a", "k"))
	b.wantReady(ctx, t, first, other)
	hooks.want(t, []waybill.Event{first, other}, [][]waybill.Event{{first}, {other}}, nil)
	b.wantCommitted(ctx, t, false, second, third)
	var told []waybill.ID
	for _, c := range heard.heard() {
		for _, e := range c.Entries {
			told = append(told, e.Event.ID)
		}
	}
	if want := []waybill.ID{first.ID, other.ID}; !slices.Equal(told, want) {
		t.Errorf("the hub published %v, want %v: absorbed events are not committed", told, want)
	}
	// Events of another process are absorbed as well.
	wantReceipts(t, receipts(ctx, t, boxOver[T](t, b.second().Outbox, outbox.Config{}), b.keyed("", "k")), duplicateOf(first))
}

// absorbedAfterAnother settles another event, which does not free the key.
func absorbedAfterAnother[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	first, other := b.keyed("a", "k"), b.event("a")
	b.write(ctx, t, first, other)
	leases := b.own(ctx, t)
	row := b.row(ctx, t, other.ID)
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: []driver.Result{result(row)}, History: true})
	wantReceipts(t, receipts(ctx, t, box, b.keyed("", "k")), duplicateOf(first))
	wantReceipts(t, receipts(ctx, t, boxOver[T](t, b.second().Outbox, outbox.Config{}), b.keyed("", "k")), duplicateOf(first))
}

func absorbedByDelayed[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	scheduled := b.keyed("a", "scheduled")
	scheduled.Delay = defaultLease
	wantReceipts(t, receipts(ctx, t, box, scheduled), written(scheduled))
	wantReceipts(t, receipts(ctx, t, box, b.keyed("a", "scheduled")), duplicateOf(scheduled))
	b.wantReady(ctx, t)
}

func absorbedByDeferred[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	failed := b.keyed("a", "failed")
	b.write(ctx, t, failed)
	leases := b.own(ctx, t)
	r := result(b.row(ctx, t, failed.ID))
	r.Attempts, r.Delay = 1, defaultLease
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}}), failed.ID)
	late := b.keyed("a", "failed")
	late.Delay = defaultLease
	wantReceipts(t, receipts(ctx, t, box, late), duplicateOf(failed))
	b.wantReady(ctx, t)
	// After its delivery from the delayed events, the key is free.
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: []driver.Result{r}, History: true})
	again := b.keyed("a", "failed")
	wantReceipts(t, receipts(ctx, t, box, again), written(again))
	b.wantReady(ctx, t, again)
}

func keyFreedBy[T any](with func(s *driver.Settlement, r driver.Result)) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		box := b.box(t)
		first := b.keyed("a", "k")
		leases := b.own(ctx, t)
		for range 3 { // repeatedly
			wantReceipts(t, receipts(ctx, t, box, first), written(first))
			wantReceipts(t, receipts(ctx, t, box, b.keyed("a", "k")), duplicateOf(first))
			s := driver.Settlement{Leases: leases}
			with(&s, result(b.row(ctx, t, first.ID)))
			wantMoved(t, b.settle(ctx, t, s), first.ID)
			first = b.keyed("a", "k")
		}
		b.wantReady(ctx, t)
		wantReceipts(t, receipts(ctx, t, box, first), written(first))
	}
}

func keyFreedByRollback[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		_, err := box.WriteEach(ctx, tx, b.keyed("a", "k"))
		return errors.Join(err, errBoom)
	})
	if !errors.Is(err, errBoom) {
		t.Fatalf("InTx returned %v, want the function's own error", err)
	}
	next := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, box, next), written(next))
	b.wantReady(ctx, t, next)
}

// tenants writes one event per tenant, with the same dedup key.
func (b *env[T]) tenants(ctx context.Context, t tb, box *outbox.Outbox[T]) (evs []waybill.Event) {
	t.Helper()
	for _, tenant := range []string{"", "acme", "ACME", "acme ", "umbrella"} {
		ev := b.keyed("a", "k")
		ev.TenantID = tenant
		wantReceipts(t, receipts(ctx, t, box, ev), written(ev))
		evs = append(evs, ev)
	}
	return evs
}

func tenantsApart[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	evs := b.tenants(ctx, t, box)
	for _, first := range evs {
		ev := b.keyed("b", "k")
		ev.TenantID = first.TenantID
		wantReceipts(t, receipts(ctx, t, box, ev), duplicateOf(first))
	}
	// A tenant from the context is equivalent to one in the event.
	ctx2 := waybill.ContextWithOrigin(ctx, waybill.Origin{TenantID: "umbrella"})
	wantReceipts(t, receipts(ctx2, t, box, b.keyed("c", "k")), duplicateOf(evs[4]))
	b.wantReady(ctx, t, evs...)
}

// tenantsFreedApart frees the key of one tenant, which leaves the keys of the
// others.
func tenantsFreedApart[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	evs := b.tenants(ctx, t, box)
	leases := b.own(ctx, t)
	row := b.row(ctx, t, evs[1].ID)
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: []driver.Result{result(row)}, History: true})
	for i, first := range evs {
		ev := b.keyed("b", "k")
		ev.TenantID = first.TenantID
		want := duplicateOf(first)
		if i == 1 {
			want = written(ev)
		}
		wantReceipts(t, receipts(ctx, t, box, ev), want)
	}
}

// keysAsBytes uses keys that a collation would fold or pad into one, in one
// write and in many.
func keysAsBytes[T any](ctx context.Context, t tb, b *env[T]) {
	long := strings.Repeat("k", 250-len(b.tag))
	names := []string{
		"abc", "ABC", "abc ", "abc  ", " abc", "Abc", "ábc", "a\u0301bc", "ａbc", "straße", "strasse", "ß", "ss", "i", "ı", "İ",
		"ﬁ", "fi", "0", "00", "1e0", "1", `a\b`, `a\\b`, "a%", "a_", "a'", `a"`, "日本", "日本語", "😀", "😁",
		long + "x", long + "y",
	}
	box := b.box(t)
	var evs []waybill.Event
	var want []outbox.Receipt
	for _, name := range names {
		ev := b.keyed("a", name)
		evs, want = append(evs, ev), append(want, written(ev))
	}
	half := len(evs) / 2
	wantReceipts(t, receipts(ctx, t, box, evs[:half]...), want[:half]...)
	for i := half; i < len(evs); i++ {
		wantReceipts(t, receipts(ctx, t, box, evs[i]), want[i])
	}
	b.wantReady(ctx, t, evs...)
	for i, name := range names {
		wantReceipts(t, receipts(ctx, t, box, b.keyed("b", name)), duplicateOf(evs[i]))
	}
}

func sameKeyTwice[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	one, two, three, plain := b.keyed("a", "k"), b.keyed("b", "k"), b.keyed("a", "k"), b.event("a")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		got, err := box.WriteEach(ctx, tx, one, two, plain)
		if err != nil {
			return err
		}
		wantReceipts(t, got, written(one), duplicateOf(one), written(plain))
		if got, err = box.WriteEach(ctx, tx, three); err == nil {
			wantReceipts(t, got, duplicateOf(one))
		}
		return err
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, one, plain)
	hooks.want(t, []waybill.Event{one, plain}, batch(one, plain), nil)
}

// differentFacts writes similar events, each under a key of the library: none
// absorbs another.
func differentFacts[T any](ctx context.Context, t tb, b *env[T]) {
	id, long := b.unique("a"), strings.Repeat("x", 128)
	var evs []waybill.Event
	var want []outbox.Receipt
	add := func(kind, aggregate, id string, key func(waybill.Event) string) {
		ev := waybill.NewEvent(kind, nil)
		ev.ID, ev.AggregateType, ev.AggregateID = waybill.NewID(), aggregate, id
		ev.DedupKey = key(ev)
		evs, want = append(evs, ev), append(want, written(ev))
	}
	version := func(ev waybill.Event) string { return ev.VersionKey(1) }
	add("Created", "order", id, waybill.Event.NaturalKey)
	add("Created", "user", id, waybill.Event.NaturalKey)
	add("Created", "order", id, version)
	add("Created", "user", id, version)
	add("a:b", "order", id, waybill.Event.NaturalKey)
	add("a", "order", "b:"+id, waybill.Event.NaturalKey)
	add("parts", "order", id, func(waybill.Event) string { return waybill.DedupKey(id+":b", "c") })
	add("parts", "order", id, func(waybill.Event) string { return waybill.DedupKey(id, "b:c") })
	add(long, "order", id+long[len(id):], waybill.Event.NaturalKey)
	add(long, "user", id+long[len(id):], waybill.Event.NaturalKey)
	wantReceipts(t, receipts(ctx, t, b.box(t), evs...), want...)
}
