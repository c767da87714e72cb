package waybill

import "context"

// Position is the place of a delivery: its lane, the epoch of the lane's owner,
// and its number in the lane. Positions of one lane are ordered by (Epoch,
// Seq).
//
// A relay that was paused may repeat an old event after newer ones of the same
// aggregate. A consumer that stores only the last value can reject positions
// that are not newer than the stored one; see [Position.Newer].
type Position struct {
	Lane  int
	Epoch int64
	Seq   int64
}

// Newer reports whether p comes after q in their lane. Positions of different
// lanes have no order: Newer is false.
func (p Position) Newer(q Position) bool {
	if p.Lane != q.Lane {
		return false
	}
	if p.Epoch != q.Epoch {
		return p.Epoch > q.Epoch
	}
	return p.Seq > q.Seq
}

// Delivery is one attempt to pass an event to a sink.
type Delivery struct {
	Event
	// Attempt counts from 1.
	Attempt int
	// Replay is the number of times that an operator replayed the event.
	Replay int
	// Position is the place of the delivery in its lane. It is zero if the
	// carrier does not report it.
	Position Position
	// Claim is the relay's right to settle this delivery, for the packages
	// of Waybill. It is nil if the sink must not settle the delivery itself:
	// other sinks receive it too, or it did not come from a relay.
	Claim any
	// Uncounted means that the carrier does not count deliveries: this one may
	// be a redelivery whatever Attempt is. A consumer group counts the attempt
	// before it calls the handler.
	Uncounted bool
	// Suspect means that an earlier consumer may have crashed while it handled
	// the event, perhaps because of the event. A consumer group handles one
	// suspect at a time, so that no other event is counted with it, and returns
	// [ErrReplayed] for a suspect that was already applied.
	Suspect bool
}

// Repeated reports whether an earlier consumer may have received the event. A
// consumer must count such an attempt before the handler runs: an event that
// crashes its consumer is never counted afterwards.
func (d *Delivery) Repeated() bool { return d.Attempt > 1 || d.Uncounted || d.Suspect }

type deliveryKey struct{}

// ContextWithDelivery returns a context in which [DeliveryFrom] finds d. Events
// written in that context take their origin from d: its tenant, its correlation
// id, and its id as their causation id.
func ContextWithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery that ctx carries.
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	return d, ok
}
