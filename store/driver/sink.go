package driver

import (
	"context"

	"github.com/waybillhq/waybill/store"
)

// SinkGuard is implemented by stores that record the sink of their outbox, so
// that a relay that was started by mistake with another sink does not drain the
// outbox into it. It is optional: without it nothing is recorded.
type SinkGuard interface {
	// ClaimSink records sink as the outbox's sink, if none is recorded, and
	// returns the sink that was recorded before; "" if there was none. If
	// another sink is recorded, ClaimSink returns [waybill.ErrOtherSink] and
	// changes nothing. With takeOver the new sink replaces the recorded one,
	// unless another node is live: then ClaimSink returns [store.ErrRelayLive]
	// and changes nothing. The claim is durable when ClaimSink returns. sink
	// has at most 255 bytes.
	//
	// The caller makes its node live first, and claims again at every
	// heartbeat. Otherwise a relay that was paused while another one took the
	// outbox over would continue with the old sink.
	ClaimSink(ctx context.Context, node store.Node, sink string, takeOver bool) (before string, err error)
	// RecordedSink returns the recorded sink; "" if there is none.
	RecordedSink(ctx context.Context) (string, error)
}
