// Command catalog writes the catalog of a shop's event types:
//
//	go run ./examples/catalog > catalog.json
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/catalog"
)

// Placed is the payload of OrderPlaced.
type Placed struct {
	Customer string    `json:"customer"`
	Total    int       `json:"total"`
	PlacedAt time.Time `json:"placedAt"`
	Note     string    `json:"note,omitempty"`
}

// Shipped is the payload of OrderShipped.
type Shipped struct {
	Carrier string `json:"carrier"`
}

var (
	orderPlaced  = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order", Topic: "orders"})
	orderShipped = waybill.Define[Shipped]("OrderShipped", waybill.Spec{AggregateType: "order", Topic: "orders"})
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(to io.Writer) error {
	c, err := catalog.New(catalog.Config{Title: "shop"}, orderPlaced, orderShipped)
	if err != nil {
		return err
	}
	return c.Write(to)
}
