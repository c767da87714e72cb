package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestInbox shows what consumer groups promise over this store.
func TestInbox(t *testing.T) {
	testserver.MySQL(t)
	inboxtest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return instance(t, nil, nil) },
	})
}
