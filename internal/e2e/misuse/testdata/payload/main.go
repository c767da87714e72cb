package main

import "github.com/waybillhq/waybill"

type placed struct{ Total int }

type canceled struct{ Reason string }

var orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// A payload of another event.
func main() {
	_ = orderPlaced.New("A-1", canceled{}) // refused: cannot use canceled
	_ = orderPlaced.New("A-1", &placed{})  // refused: cannot use &placed
	_ = orderPlaced.New(1, placed{})       // refused: cannot use 1
	var reason canceled
	reason, _ = orderPlaced.Decode(waybill.Event{}) // refused: cannot use orderPlaced.Decode
	_ = reason
}
