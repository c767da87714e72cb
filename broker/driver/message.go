package driver

import (
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/message"
)

// PublishID returns the id of one publication of an event: "ID", and "ID-r2"
// for its second replay.
func PublishID(id waybill.ID, replay int) string { return message.PublishID(id.String(), replay) }

// AggregateKey returns the tenant, aggregate type and aggregate id of an event
// as one text that is unique per aggregate. The result is empty for an event
// without order.
func AggregateKey(ev *waybill.Event) string {
	var text strings.Builder
	return message.AppendAggregateKey(&text, ev)
}

// CheckEventSource returns an error if source cannot be the CloudEvents
// attribute source. Sinks call it in their constructors, and name their own
// field in the error. An empty source is valid.
func CheckEventSource(source string) error { return message.CheckEventSource(source) }
