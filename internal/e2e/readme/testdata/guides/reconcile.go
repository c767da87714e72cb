package guide

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

type Created struct{ EnrollmentID string }

var EnrollmentCreated = waybill.Define[Created]("EnrollmentCreated", waybill.Spec{AggregateType: "enrollment"})

func _(ctx context.Context, db *pgstore.Store, withoutNotification func(ctx context.Context, from, to time.Time) []string) {
	//block:0
}

func _(sqlDB *sql.DB) {
	_ = reconcile.Job{
		//block:1
	}
}

func _(in *inbox.Inbox[*sql.Tx]) {
	//block:2
}

func _(rows *sql.DB, begin func(*sql.DB) func(context.Context, *sql.TxOptions) (memstore.Handle[*sql.Tx], error)) {
	{
		//block:3
	}
	{
		//block:4
	}
}
