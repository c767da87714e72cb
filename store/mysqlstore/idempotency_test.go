package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestIdempotency shows what idempotency keys promise over this store.
func TestIdempotency(t *testing.T) {
	testserver.MySQL(t)
	idemtest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return instance(t, nil, nil) },
	})
}
