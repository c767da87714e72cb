package sqlitestore_test

import (
	"testing"

	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestInbox tests the guarantees of consumer groups over this store.
func TestInbox(t *testing.T) {
	t.Parallel()
	inboxtest.Run(t, harness(func(t *testing.T, path string) *sqlitestore.Store {
		return openAt(t, path, sqlitestore.Config{})
	}))
}
