package guide

import (
	"fmt"
	"net/http"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/store/memstore"
)

func mount(db *memstore.Store[*memstore.Tx], mux *http.ServeMux, server *http.Server) error {
	//block:0
	return nil
}

func allow(cfg dashboard.Config, isOperator func(r *http.Request) bool) {
	//block:1
}
