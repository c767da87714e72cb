package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestInbox runs the inbox suite on this store.
func TestInbox(t *testing.T) { t.Parallel(); onBoth(t, testInbox) }

func testInbox(t *testing.T) {
	inboxtest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: shelve(t).instance,
	})
}
