package driver

import "github.com/waybillhq/waybill"

// Claim is a relay's right to settle the deliveries of one lane. The field
// Claim of a [waybill.Delivery] holds a *Claim; the delivery's position has the
// lane and the epoch. A claim is not changed after its creation.
type Claim struct {
	// Token is the random token of the lane's owner.
	Token waybill.ID
	// History means that events are kept in the history after their delivery.
	History bool
	// Source is the hub of the outbox's store. It identifies the tables.
	Source *Hub
}

// ClaimOf returns the claim of a delivery; the zero Claim if the delivery has
// none.
func ClaimOf(d *waybill.Delivery) Claim {
	if c, ok := d.Claim.(*Claim); ok && c != nil {
		return *c
	}
	return Claim{}
}

// LeaseOf returns the fence of a delivery: its lane and epoch, and the token of
// its claim.
func LeaseOf(d *waybill.Delivery) Lease {
	return Lease{Lane: d.Position.Lane, Epoch: d.Position.Epoch, Token: ClaimOf(d).Token}
}
