package guide

import (
	"encoding/json"
	"reflect"

	"github.com/waybillhq/waybill/catalog"
)

// Currency is a type of the guide.
type Currency string

func _() catalog.Config {
	//block:0
	return cfg
}
