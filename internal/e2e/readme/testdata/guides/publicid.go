package guide

import (
	"net/http"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/publicid"
)

//block:0 declarations

func _(r *http.Request, ulid waybill.ID) {
	//block:0 statements
}
