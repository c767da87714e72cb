package memstore_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// The caller owns the rows of a read: changing a row changes neither the table
// nor other rows.
func TestRowsAreTheirReadersOwn(t *testing.T) {
	db, err := memstore.New(memstore.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var evs []waybill.Event
	for i := range 4 {
		evs = append(evs, waybill.Event{
			Type: "a", AggregateType: "order", AggregateID: "1", Headers: map[string]string{"n": fmt.Sprint(i)}, Payload: fmt.Appendf(nil, `{"n":%d}`, i),
		})
	}
	large := []byte(`"` + string(bytes.Repeat([]byte("x"), 200_000)) + `"`) // larger than pieceSize
	evs = append(evs, waybill.Event{Type: "a", Payload: large})
	err = box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, evs...) })
	if err != nil {
		t.Fatal(err)
	}
	fetch := func() []store.Row {
		page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{}}, 100)
		if err != nil || len(page.Rows) != len(evs) {
			t.Fatalf("%d rows, %v", len(page.Rows), err)
		}
		return page.Rows
	}
	rows := fetch()
	for i := range rows {
		ev := &rows[i].Event
		_ = append(ev.Payload, "overwritten"...)
		if i%2 == 0 {
			clear(ev.Payload)
			clear(ev.Headers)
		}
	}
	for i, again := range fetch() {
		want := evs[i]
		if !bytes.Equal(again.Event.Payload, want.Payload) || again.Event.Headers["n"] != want.Headers["n"] {
			t.Errorf("row %d of the table has become %.40s %v", i, again.Event.Payload, again.Event.Headers)
		}
		if i%2 == 1 && !bytes.Equal(rows[i].Event.Payload, want.Payload) {
			t.Errorf("row %d of the page has become %.40s", i, rows[i].Event.Payload)
		}
	}
}
