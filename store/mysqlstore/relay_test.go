package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestRelay shows the relay's promises over this store.
func TestRelay(t *testing.T) {
	testserver.MySQL(t)
	relaytest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return instance(t, nil, nil) },
	})
}
