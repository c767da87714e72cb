package guide

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/pgstore"
)

//block:1

func _(ctx context.Context, box *outbox.Outbox[pgx.Tx]) {
	//block:0
}

func _(t *testing.T, db *pgstore.Store, placeOrder func(*testing.T, *outbox.Outbox[pgx.Tx])) {
	//block:2
}

func _(t *testing.T, url string) {
	//block:3
}
