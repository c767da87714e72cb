package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type memTx = *memstore.Tx

var errBoom = errors.New("boom")

// open returns an outbox over a new memstore of one lane, and the store.
func open(t *testing.T, cfg outbox.Config) (*outbox.Outbox[memTx], *memstore.Store[memTx]) {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return box, db
}

// stored returns the ready events, in order.
func stored(t *testing.T, db driver.Reader) []waybill.Event {
	t.Helper()
	page, err := db.Fetch(t.Context(), []driver.Cursor{{}}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var evs []waybill.Event
	for _, row := range page.Rows {
		evs = append(evs, row.Event)
	}
	return evs
}

// write writes events in one transaction.
func write(t *testing.T, box *outbox.Outbox[memTx], evs ...waybill.Event) error {
	t.Helper()
	return box.InTx(t.Context(), func(ctx context.Context, tx memTx) error { return box.Write(ctx, tx, evs...) })
}

func TestNewRequiresAStore(t *testing.T) {
	if _, err := outbox.New[memTx](nil, outbox.Config{}); err == nil {
		t.Error("New accepted no store")
	}
}

// The error gives the position of every invalid event, and no event is written.
func TestWriteReportsEveryInvalidEvent(t *testing.T) {
	box, db := open(t, outbox.Config{})
	good := waybill.NewEvent("good", nil)
	noType := waybill.NewEvent("", nil)
	noJSON := waybill.Event{Type: "noJSON", Payload: []byte("x")}
	err := write(t, box, good, noType, good, noJSON)
	for _, want := range []string{"event 2 of 4", "Type: is empty", "event 4 of 4", "Payload: not valid JSON"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not contain %q", err, want)
		}
	}
	if n := len(stored(t, db.Driver().Relay)); n != 0 {
		t.Errorf("%d events were written", n)
	}
	// The write reports the encoding error.
	if err := write(t, box, waybill.NewEvent("t", func() {})); err == nil || !strings.Contains(err.Error(), "Payload: encode") {
		t.Errorf("an event that could not be encoded: %v", err)
	}
}

// A hook receives complete events: with their ids and with the origin of the
// context.
func TestBeforeWriteReceivesCompleteEvents(t *testing.T) {
	var seen []waybill.Event
	box, db := open(t, outbox.Config{Hooks: []outbox.Hook{{
		BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
			seen = slices.Clone(info.Events)
			return info.Events, nil
		},
	}}})
	ctx := waybill.ContextWithOrigin(t.Context(), waybill.Origin{TenantID: "acme"})
	err := box.InTx(ctx, func(ctx context.Context, _ memTx) error { return box.Emit(ctx, waybill.NewEvent("t", 1)) })
	if err != nil {
		t.Fatal(err)
	}
	got := stored(t, db.Driver().Relay)
	if len(seen) != 1 || len(got) != 1 || seen[0].ID != got[0].ID || seen[0].ID.IsZero() || seen[0].TenantID != "acme" {
		t.Errorf("the hook saw %+v, stored is %+v", seen, got)
	}
}

// A hook may return the same events repeatedly: each write makes its own
// copies.
func TestBeforeWriteKeepsItsOwnSlice(t *testing.T) {
	audit := []waybill.Event{waybill.NewEvent("audit", nil)}
	box, db := open(t, outbox.Config{Hooks: []outbox.Hook{{
		BeforeWrite: func(context.Context, outbox.BeforeWriteInfo) ([]waybill.Event, error) { return audit, nil },
	}}})
	for range 2 {
		if err := write(t, box, waybill.NewEvent("t", nil)); err != nil {
			t.Fatal(err)
		}
	}
	got := stored(t, db.Driver().Relay)
	if len(got) != 2 || got[0].ID == got[1].ID || !audit[0].ID.IsZero() {
		t.Errorf("stored are %+v; the hook's own event is %+v", got, audit[0])
	}
}

// Validation covers the events that a hook returns, not those that it received.
func TestBeforeWriteIsChecked(t *testing.T) {
	mend := func(evs []waybill.Event) []waybill.Event {
		for i := range evs {
			evs[i].Type = "fixed"
		}
		return evs
	}
	box, db := open(t, outbox.Config{Hooks: []outbox.Hook{{
		BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
			return mend(info.Events), nil
		},
	}}})
	if err := write(t, box, waybill.NewEvent("", nil)); err != nil || len(stored(t, db.Driver().Relay)) != 1 {
		t.Errorf("an event that a hook fixed: %v", err)
	}
	box, db = open(t, outbox.Config{Hooks: []outbox.Hook{{
		BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
			return append(info.Events, waybill.Event{}), nil
		},
	}}})
	if err := write(t, box, waybill.NewEvent("t", nil)); err == nil || !strings.Contains(err.Error(), "event 2 of 2") || len(stored(t, db.Driver().Relay)) != 0 {
		t.Errorf("an event that a hook broke: %v", err)
	}
}

func TestReceipts(t *testing.T) {
	box, _ := open(t, outbox.Config{Hooks: []outbox.Hook{{
		BeforeWrite: func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
			info.Events = slices.DeleteFunc(info.Events, func(ev waybill.Event) bool { return ev.Type == "secret" })
			slices.Reverse(info.Events) // receipts keep the order of the write
			return append(info.Events, waybill.NewEvent("extra", nil)), nil
		},
	}}})
	keyed := waybill.NewEvent("keyed", nil)
	keyed.DedupKey = "k"
	keyed.ID = waybill.NewID()
	if err := write(t, box, keyed); err != nil {
		t.Fatal(err)
	}
	again := waybill.NewEvent("again", nil)
	again.DedupKey = "k"
	var got []outbox.Receipt
	err := box.InTx(t.Context(), func(ctx context.Context, tx memTx) (err error) {
		got, err = box.WriteEach(ctx, tx, again, waybill.NewEvent("secret", nil), waybill.NewEvent("plain", nil))
		return err
	})
	if err != nil || len(got) != 3 {
		t.Fatalf("receipts %v, %v", got, err)
	}
	if got[0] != (outbox.Receipt{ID: keyed.ID, Outcome: outbox.Duplicate}) {
		t.Errorf("the absorbed event: %v", got[0])
	}
	if got[1] != (outbox.Receipt{Outcome: outbox.Suppressed}) {
		t.Errorf("the suppressed event: %v", got[1])
	}
	if got[2].Outcome != outbox.Written || got[2].ID.IsZero() {
		t.Errorf("the written event: %v", got[2])
	}
}

func TestOutcomeString(t *testing.T) {
	for o, want := range map[outbox.Outcome]string{
		outbox.Written: "written", outbox.Duplicate: "duplicate", outbox.Suppressed: "suppressed", 0: "outcome(0)", 9: "outcome(9)",
	} {
		if got := o.String(); got != want {
			t.Errorf("outcome %d is %q, want %q", int(o), got, want)
		}
	}
}

// An observer adds headers that the event lacks without changing the event's
// own map, and the added headers are validated.
func TestObserveAddsHeaders(t *testing.T) {
	added := map[string]string{"traceparent": "00-ab", "own": "observer"}
	var saw []waybill.ID
	box, db := open(t, outbox.Config{Observe: observe.Hooks{Write: func(_ context.Context, info observe.WriteInfo) map[string]string {
		saw = append(saw, info.Event.ID)
		return added
	}}})
	headers := map[string]string{"own": "event"}
	with, without := waybill.NewEvent("with", nil), waybill.NewEvent("without", nil)
	with.Headers = headers
	if err := write(t, box, with, without); err != nil {
		t.Fatal(err)
	}
	got := stored(t, db.Driver().Relay)
	if !maps.Equal(got[0].Headers, map[string]string{"traceparent": "00-ab", "own": "event"}) || !maps.Equal(got[1].Headers, added) {
		t.Errorf("stored headers are %v and %v", got[0].Headers, got[1].Headers)
	}
	if len(headers) != 1 || len(added) != 2 || len(saw) != 2 || saw[0] != got[0].ID {
		t.Errorf("the event's headers became %v, the observer's %v; it saw %v", headers, added, saw)
	}
	box, db = open(t, outbox.Config{Observe: observe.Hooks{Write: func(context.Context, observe.WriteInfo) map[string]string {
		return map[string]string{"bad": "a\r\nb"}
	}}})
	if err := write(t, box, waybill.NewEvent("t", nil)); err == nil || len(stored(t, db.Driver().Relay)) != 0 {
		t.Errorf("headers that no event may have: %v", err)
	}
}

// thing is an aggregate.
type thing struct{ waybill.Log }

// Events that an aggregate raises during the write are not forgotten with the
// written ones: the next transaction writes them.
func TestTrackForgetsOnlyWhatWasWritten(t *testing.T) {
	agg := &thing{}
	raised := false
	box, db := open(t, outbox.Config{Hooks: []outbox.Hook{{
		AfterWrite: func(context.Context, outbox.AfterWriteInfo) {
			if !raised {
				raised = true
				agg.Raise(waybill.NewEvent("second", nil))
			}
		},
	}}})
	agg.Raise(waybill.NewEvent("first", nil))
	track := func() error {
		return box.InTx(t.Context(), func(ctx context.Context, _ memTx) error { return box.Track(ctx, agg) })
	}
	if err := track(); err != nil {
		t.Fatal(err)
	}
	if left := agg.Raised(); len(left) != 1 || left[0].Type != "second" {
		t.Fatalf("left are %v", left)
	}
	if err := track(); err != nil || len(agg.Raised()) != 0 {
		t.Fatalf("the second transaction: %v, left %v", err, agg.Raised())
	}
	if got := stored(t, db.Driver().Relay); len(got) != 2 || got[0].Type != "first" || got[1].Type != "second" {
		t.Errorf("stored are %v", got)
	}
}

// The context of a hook carries the caller's values and is not canceled with
// the request.
func TestHookContext(t *testing.T) {
	type key struct{}
	var got []any
	note := func(ctx context.Context) { got = append(got, ctx.Value(key{})) }
	box, _ := open(t, outbox.Config{Hooks: []outbox.Hook{{
		AfterWrite:    func(ctx context.Context, _ outbox.AfterWriteInfo) { note(ctx) },
		AfterCommit:   func(ctx context.Context, _ outbox.AfterCommitInfo) { note(ctx) },
		AfterRollback: func(ctx context.Context, _ outbox.AfterRollbackInfo) { note(ctx) },
	}}})
	ctx := context.WithValue(t.Context(), key{}, "caller's")
	for _, end := range []error{nil, errBoom} {
		err := box.InTx(ctx, func(ctx context.Context, tx memTx) error {
			return errors.Join(box.Write(ctx, tx, waybill.NewEvent("t", nil)), end)
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(got) != "[caller's caller's caller's caller's]" {
		t.Errorf("the hooks saw %v", got)
	}
}
