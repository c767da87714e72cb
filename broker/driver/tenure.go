package driver

import (
	"errors"

	"github.com/waybillhq/waybill"
)

// Tenure is the time during which a session owns an origin of messages, such as
// a partition, of a broker that does not count deliveries. A session creates a
// Tenure whenever it acquires the partition, and sets it in every message from
// there ([Incoming.Tenure]). The zero value is ready to use.
//
// The previous owner may have crashed, and a message that was in flight at that
// time may be the cause. Therefore the first messages of a tenure are suspects:
// [waybill.Delivery.Suspect]. At most [broker.ReceiverConfig.MaxInFlight]
// messages can have been in flight. The tenure counts messages that the
// consumer handles for the first time. Messages that were done before
// ([waybill.ErrReplayed]) do not count, because any number of them may stand
// between two that were not done.
type Tenure struct { // guarded by the receiver
	put   uint64 // number of messages so far
	fresh int    // messages handled for the first time, at most the window
	last  uint64 // highest number among the fresh messages
}

// enter returns the number of the next message.
func (t *Tenure) enter() uint64 {
	if t == nil {
		return 0
	}
	t.put++
	return t.put
}

// suspects reports whether message number may have been in flight before the
// tenure.
func (t *Tenure) suspects(number uint64, window int) bool {
	return t != nil && (t.fresh < window || number < t.last)
}

// done records the outcome of message number.
func (t *Tenure) done(number uint64, window int, class waybill.Class, err error) {
	if t == nil || class != waybill.ClassDone || errors.Is(err, waybill.ErrReplayed) || t.fresh >= window {
		return
	}
	t.fresh++
	t.last = max(t.last, number)
}
