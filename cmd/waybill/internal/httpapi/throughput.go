package httpapi

import (
	"net/http"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
)

func (a *api) throughput(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := admin.ThroughputFilter{Destination: q.Get("destination"), Type: q.Get("type"), ByType: q.Get("by_type") == "1"}
	if f.Since, f.Until, err = bounds(q); err != nil {
		return nil, err
	}
	if text := q.Get("step"); text != "" {
		if f.Step, err = settings.ParseDuration(text); err != nil || f.Step < time.Minute {
			return nil, refuse(http.StatusBadRequest, "step: must be a duration of a minute or more, such as 5m")
		}
	}
	t, err := one.Outbox.Throughput(r.Context(), f)
	if err != nil {
		return nil, err
	}
	return view.ThroughputOf(t, f.ByType), nil
}
