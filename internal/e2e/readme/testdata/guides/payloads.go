package guide

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/payload"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func _(ctx context.Context, db *sqlitestore.Store, current, old []byte) error {
	_ = ctx
	var _ *outbox.Outbox[*sql.Tx]
	//block:0
	_ = box
	return nil
}
