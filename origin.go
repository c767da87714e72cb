package waybill

import "context"

// Origin says for whom and why something happens. Events that leave the matching fields empty take them from the
// context they are written in.
type Origin struct {
	TenantID      string
	CorrelationID string
	CausationID   string
}

type originKey struct{}

// ContextWithOrigin returns a context whose written events come from o.
func ContextWithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginFrom returns the origin that events written in ctx take: what [ContextWithOrigin] put there, and for each
// field that is empty, what follows from the delivery in hand ([ContextWithDelivery]): the event's tenant, its
// correlation id, and its id as the causation.
func OriginFrom(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	d, ok := DeliveryFrom(ctx)
	if !ok {
		return o
	}
	if o.TenantID == "" {
		o.TenantID = d.TenantID
	}
	if o.CorrelationID == "" {
		o.CorrelationID = d.CorrelationID
	}
	if o.CausationID == "" && !d.ID.IsZero() {
		o.CausationID = d.ID.String()
	}
	return o
}

// Fill returns the event with those of its tenant, correlation and causation that are empty taken from o.
func (o Origin) Fill(ev Event) Event {
	if ev.TenantID == "" {
		ev.TenantID = o.TenantID
	}
	if ev.CorrelationID == "" {
		ev.CorrelationID = o.CorrelationID
	}
	if ev.CausationID == "" {
		ev.CausationID = o.CausationID
	}
	return ev
}
