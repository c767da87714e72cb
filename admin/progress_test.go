package admin_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// idAt returns an id of a time: its first six bytes are milliseconds.
func idAt(at time.Time) waybill.ID {
	id := waybill.NewID()
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	return id
}

// TestProgress: when a group applied an event last, how many per second, and
// how far it is behind the newest delivered event of its types.
func TestProgress(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.NewInbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	deliver := func(kind string, after time.Duration) waybill.Event {
		ev := waybill.NewEvent(kind, 1)
		ev.ID = idAt(begin.Add(after))
		err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) })
		if err != nil {
			t.Fatal(err)
		}
		r, err := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		return ev
	}
	apply := func(group string, ev waybill.Event) {
		t.Helper()
		err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
			_, err := db.Driver().Inbox.Accept(ctx, tx, waybill.NewID(), []store.InboxEntry{{Group: group, Key: ev.ID, Event: ev.ID, Type: ev.Type}})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	progress := func(group string) admin.GroupProgress {
		t.Helper()
		all, err := groups.Progress(t.Context(), group, "another")
		if err != nil || len(all) != 2 || all[0].Group != group || all[1] != (admin.GroupProgress{Group: "another"}) {
			t.Fatalf("the progress is %+v, %v", all, err)
		}
		return all[0]
	}
	if p := progress("g"); p != (admin.GroupProgress{Group: "g"}) {
		t.Errorf("without records, the progress is %+v", p)
	}
	before := time.Now().Add(-time.Millisecond)
	apply("g", deliver("A", 0))
	if p := progress("g"); p.LastApplied.Before(before) || p.LastApplied.After(time.Now()) || p.Lag != 0 || !p.LagKnown || p.Rate != 1.0/60 {
		t.Errorf("after the only event, the progress is %+v", p)
	}
	behind := deliver("A", 2*time.Minute)
	deliver("B", 30*time.Minute)
	if p := progress("g"); p.Lag != 2*time.Minute || !p.LagKnown {
		t.Errorf("behind an event, the progress is %+v", p)
	}
	apply("g", behind)
	if p := progress("g"); p.Lag != 0 || p.Rate != 2.0/60 {
		t.Errorf("when it has applied that, the progress is %+v", p)
	}
	foreign := waybill.NewEvent("C", 1)
	foreign.ID = waybill.NewID()
	apply("h", foreign)
	if p := progress("h"); p.LagKnown || p.LastApplied.IsZero() {
		t.Errorf("of events of another database, the progress is %+v", p)
	}
	for range 150 {
		foreign.ID = waybill.NewID()
		apply("h", foreign)
	}
	if p := progress("h"); p.Rate <= 100.0/60 {
		t.Errorf("after many events, the progress is %+v", p)
	}
}
