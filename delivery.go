package waybill

import "context"

// Position is where a delivery stands: its lane, the epoch of the lane's owner, and its number in the lane. Positions
// of one lane are ordered by (Epoch, Seq).
//
// A paused relay that wakes up may repeat an old event after newer ones of the same aggregate. A consumer that keeps
// the last value only can refuse what is not newer than what it has; see [Position.Newer].
type Position struct {
	Lane  int
	Epoch int64
	Seq   int64
}

// Newer reports whether p comes after q in their lane. Positions of two lanes have no order: then it is false.
func (p Position) Newer(q Position) bool {
	if p.Lane != q.Lane {
		return false
	}
	if p.Epoch != q.Epoch {
		return p.Epoch > q.Epoch
	}
	return p.Seq > q.Seq
}

// Claim is the right by which a relay holds a delivery. It is opaque: relays make it, stores check it, handlers may
// read its position.
type Claim struct {
	position Position
	token    ID
	history  bool
	source   any
}

// NewClaim returns a claim for a position under the owner's token. Relays call it; a test of a sink may.
func NewClaim(p Position, token ID) Claim {
	return Claim{position: p, token: token}
}

// Position returns where the delivery stands.
func (c Claim) Position() Position { return c.position }

// Token returns the random token of the lane's owner. It is zero where a sink must not settle the delivery itself: other
// sinks get it too.
func (c Claim) Token() ID { return c.token }

// WithHistory returns the claim, saying whether the event is to be kept in the history once it is delivered.
func (c Claim) WithHistory(keep bool) Claim {
	c.history = keep
	return c
}

// WithSource returns the claim, saying whose it is: something comparable that stands for the outbox's tables.
func (c Claim) WithSource(source any) Claim {
	c.source = source
	return c
}

// Source returns what stands for the outbox's tables, or nil.
func (c Claim) Source() any { return c.source }

// History reports whether the event is to be kept in the history once it is delivered.
func (c Claim) History() bool { return c.history }

// Delivery is one attempt to hand an event to a sink.
type Delivery struct {
	Event
	// Attempt counts from 1.
	Attempt int
	// Replay is 0, and one more for every time an operator replayed the event.
	Replay int
	// Claim is the right by which the relay holds this delivery.
	Claim Claim
	// ClassDefer says that the carrier counts no deliveries: this one may not be the first, whatever
	// Attempt is. A consumer group counts the attempt before it calls the handler.
	Uncounted bool
	// Suspect says that an earlier consumer may have had the event when it died, and may have died
	// of it. A consumer group handles one suspect at a time, so that no other event
	// is counted with it, and returns [ErrReplayed] for one that was applied before.
	Suspect bool
}

// Repeated reports whether an earlier consumer may have had the event. Its attempt has to be
// counted before the handler runs: an event that kills its consumer is counted then or never.
func (d *Delivery) Repeated() bool { return d.Attempt > 1 || d.Uncounted || d.Suspect }

type deliveryKey struct{}

// ContextWithDelivery returns a context in which [DeliveryFrom] finds d, and in which events that are written take
// their origin from it: its tenant, its correlation id, and its id as their causation.
func ContextWithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery that is being handled in ctx.
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	return d, ok
}
