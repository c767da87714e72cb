package guide

import (
	"context"
	"net/http"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/watermillbridge"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

func _(ctx context.Context, url string, db *pgstore.Store, group *inbox.Group[pgx.Tx], box *outbox.Outbox[pgx.Tx], publisher message.Publisher) {
	{
		//block:0
	}
	{
		//block:1
	}
	{
		receiver, _ := webhook.NewReceiver(group, webhook.ReceiverConfig{})
		//block:2
	}
	{
		//block:3
	}
}
