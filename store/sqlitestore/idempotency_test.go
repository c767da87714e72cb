package sqlitestore_test

import (
	"testing"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestIdempotency tests the guarantees of idempotency keys over this store.
func TestIdempotency(t *testing.T) {
	t.Parallel()
	idemtest.Run(t, harness(func(t *testing.T, path string) *sqlitestore.Store {
		return openAt(t, path, sqlitestore.Config{})
	}))
}
