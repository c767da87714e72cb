package broker

import (
	"errors"

	"github.com/waybillhq/waybill"
)

// Tenure is the time for which a session has a place that messages come from, such as a partition,
// of a broker that counts no deliveries. A session makes one whenever it gets the place, and names
// it with every message of the place ([Incoming.Tenure]). Its zero value is ready.
//
// The process that had the place before may have died, and a message that was in flight then may be
// the cause. So the first messages of a tenure are suspects: [waybill.Delivery.Suspect]. Only
// [ReceiverConfig.MaxInFlight] messages can have been in flight. The tenure counts messages that the
// consumer handles for the first time; one that was done before ([waybill.ErrReplayed]) does not
// count, because any number of those may stand between two that were not.
type Tenure struct { // guarded by the receiver
	put   uint64 // messages, ever
	fresh int    // of them handled for the first time, at most the receiver's window
	last  uint64 // the last of those, by its number
}

// enter gives a message its number.
func (t *Tenure) enter() uint64 {
	if t == nil {
		return 0
	}
	t.put++
	return t.put
}

// suspects reports whether the message of a number may have been in flight before the tenure.
func (t *Tenure) suspects(number uint64, window int) bool {
	return t != nil && (t.fresh < window || number < t.last)
}

// done notes what became of the message of a number.
func (t *Tenure) done(number uint64, window int, class waybill.Class, err error) {
	if t == nil || class != waybill.ClassDone || errors.Is(err, waybill.ErrReplayed) || t.fresh >= window {
		return
	}
	t.fresh++
	t.last = max(t.last, number)
}
