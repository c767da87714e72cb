package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// migrated is a store whose tables have a migration that the code does not
// know.
type migrated struct {
	driver.Relay
	driver.Migrator
}

func (migrated) Migrations(context.Context) ([]store.Migration, error) {
	return []store.Migration{{Version: 1, Name: "outbox", AppliedAt: time.Now()}, {Version: 99, Name: "future", AppliedAt: time.Now(), Unknown: true}}, nil
}

// TestNewerTables: a relay does not start on tables that are newer than its
// code, unless Config.NewerTables is set.
func TestNewerTables(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, allowed := range []bool{false, true} {
		r, err := relay.New(testroles.Of[any](migrated{Relay: db.Driver().Relay}), relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{NewerTables: allowed})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(ctx); errors.Is(err, store.ErrNewerTables) == allowed {
			t.Errorf("NewerTables %v: %v", allowed, err)
		}
	}
}
