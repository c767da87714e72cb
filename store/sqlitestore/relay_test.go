package sqlitestore_test

import (
	"testing"

	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestRelay tests the guarantees of the relay over this store.
func TestRelay(t *testing.T) {
	relaytest.Run(t, harness(func(t *testing.T, path string) *sqlitestore.Store {
		return openAt(t, path, sqlitestore.Config{})
	}))
}
