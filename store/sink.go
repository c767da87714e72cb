package store

import "context"

// SinkGuard is a store that remembers where the events of its outbox go, so that a relay that was
// started by mistake with another destination does not empty the outbox into it. A relay does
// without it: then nothing is remembered.
type SinkGuard interface {
	// ClaimSink records sink as the place where the events go, if none is recorded, and returns
	// what was recorded before; "" if nothing was. If another sink is recorded, the claim is
	// [waybill.ErrOtherSink], and nothing changes. With takeOver the new sink replaces the recorded
	// one, unless a node other than this one is live: then the claim is [ErrRelayLive], and nothing
	// changes. The claim is on disk when ClaimSink returns. sink has at most 255 bytes.
	//
	// The caller makes its node live first, and claims again at every heartbeat. Otherwise a relay
	// that was paused while another one took the outbox over would go on with the old sink.
	ClaimSink(ctx context.Context, node Node, sink string, takeOver bool) (before string, err error)
	// RecordedSink returns what is recorded; "" if nothing is.
	RecordedSink(ctx context.Context) (string, error)
}
