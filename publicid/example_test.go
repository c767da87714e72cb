package publicid_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/publicid"
)

// Invoice is the type of the ids.
type Invoice struct {
	ID    publicid.ID[Invoice] `json:"id"`
	Total int                  `json:"total"`
}

func (Invoice) PublicPrefix() string { return "inv" }

func Example() {
	// In a program: publicid.New[Invoice]().
	internal, err := waybill.ParseID("01J9ZT6VB2E4X8K3M5N7P9QRST")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := json.Marshal(Invoice{ID: publicid.From[Invoice](internal), Total: 9990})
	fmt.Println(string(text), err)

	id, err := publicid.Parse[Invoice]("inv_01j9zt6vb2e4x8k3m5n7p9qrst")
	fmt.Println(id.ULID(), err)
	_, err = publicid.Parse[Invoice]("ord_01j9zt6vb2e4x8k3m5n7p9qrst")
	fmt.Println(errors.Is(err, publicid.ErrInvalid))
	// Output:
	// {"id":"inv_01j9zt6vb2e4x8k3m5n7p9qrst","total":9990} <nil>
	// 01J9ZT6VB2E4X8K3M5N7P9QRST <nil>
	// true
}
