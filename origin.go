package waybill

import "context"

// Origin is the tenant, correlation and causation of an event. Events that
// leave these fields empty take them from the context of the write.
type Origin struct {
	TenantID      string
	CorrelationID string
	CausationID   string
}

type originKey struct{}

// ContextWithOrigin returns a context whose written events take their origin
// from o.
func ContextWithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginFrom returns the origin of events that are written in ctx: the origin
// set by [ContextWithOrigin]; for each empty field, the value derived from the
// delivery in ctx ([ContextWithDelivery]): the event's tenant, its correlation
// id, and its id as the causation id.
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
