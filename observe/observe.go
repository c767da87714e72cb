// Package observe names the points of the flow at which metrics, traces and headers plug in. Any field of [Hooks] may be
// nil; what is nil costs nothing.
package observe

import (
	"context"

	"github.com/waybillhq/waybill"
)

// Hooks is what an observer wants to be told, like httptrace.ClientTrace. Functions may be called concurrently and must
// not block.
type Hooks struct {
	// Write is called for every event that is written, after the outbox's own BeforeWrite hooks and before the event is
	// checked. The headers it returns are added to the event, unless it has one of the same name: trace context travels
	// this way. The event's payload and headers must not be changed.
	Write func(ctx context.Context, ev waybill.Event) map[string]string
}
