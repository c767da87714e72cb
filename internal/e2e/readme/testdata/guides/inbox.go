package guide

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

type (
	Charge  struct{}
	Gateway interface {
		Charge(ctx context.Context, amount int, key string) (Charge, error)
	}
)

func _(ctx context.Context, db *pgstore.Store, ev waybill.Event) {
	//block:0
	{
		//block:1
	}
}

func _(
	ctx context.Context, ev waybill.Event, payments *inbox.Group[pgx.Tx], gateway Gateway, amount int,
	idempotencyKey func(string) string, saveCharge func(context.Context, pgx.Tx, Charge) error,
) {
	//block:2
}
