package guide

import (
	"context"
	"net/http"
	"os"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
)

func _(ctx context.Context, r *relay.Relay) error {
	//block:0
	return err
}

func _() error {
	//block:1
	return nil
}

func _(r *relay.Relay) {
	//block:2
}
