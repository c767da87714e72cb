package daemon

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestAStoredEventIsSentOncePerAttempt checks that the number of polls does not
// matter.
func TestAStoredEventIsSentOncePerAttempt(t *testing.T) {
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "waybill.db"), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	group := in.MustGroup("BILLING", inbox.Options{StoreEvent: true, BackoffBase: time.Microsecond, BackoffMax: time.Microsecond})
	ev := eventfill.Defaults(waybill.NewEvent("OrderPlaced", 7))
	fail := func() {
		t.Helper()
		_, err := group.Consume(t.Context(), ev, func(context.Context, *sql.Tx, waybill.Event) error { return errors.New("out of stock") })
		if err == nil {
			t.Fatal("the event did not fail")
		}
	}
	sent := 0
	sink := relay.SinkFunc(func(context.Context, waybill.Delivery) error { sent++; return nil })
	again := &retry{
		relay: &Relay{Store: &connect.Store{Roles: driver.Roles[any]{InboxRecords: db.Driver().InboxRecords}}, Sink: &connect.Sink{Sink: sink}, own: slog.New(slog.DiscardHandler)},
		sent:  make(map[retryKey]retrySent),
	}
	for attempt := 1; attempt <= 3; attempt++ {
		fail()
		deadline := time.Now().Add(30 * time.Second)
		for looks := 0; sent < attempt || looks < 5; looks++ { // due shortly after the failure
			if err := again.once(t.Context()); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatal("the event is not sent")
			}
		}
		if sent != attempt {
			t.Fatalf("sent %d times after %d attempts", sent, attempt)
		}
	}
}
