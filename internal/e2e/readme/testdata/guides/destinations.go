package guide

import (
	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/pgstore"
)

func _(db *pgstore.Store, billing, shipping, partner waybill.Sink) {
	//block:0 statements
}
