package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store/driver"
)

// to returns the destinations of a request's relay.
func (a *api) to(r *http.Request) (*admin.Destinations, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	if one.Destinations == nil {
		return nil, refuse(http.StatusNotFound, "the store has no destinations")
	}
	return one.Destinations, nil
}

// outbox returns the outbox of a request's relay, or the backlog of the
// destination that ?destination= names.
func (a *api) outbox(r *http.Request) (*admin.Outbox, error) {
	if q := r.URL.Query(); q.Has("destination") {
		to, err := a.to(r)
		if err != nil {
			return nil, err
		}
		return to.Outbox(r.Context(), q.Get("destination"))
	}
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	return one.Outbox, nil
}

func (a *api) destinations(r *http.Request) (any, error) {
	to, err := a.to(r)
	if err != nil {
		return nil, err
	}
	all, err := to.List(r.Context())
	if err != nil {
		return nil, err
	}
	return map[string]any{"destinations": view.DestinationsOf(all)}, nil
}

// pause pauses a destination. The body is optional.
func (a *api) pause(r *http.Request) (any, error) {
	to, err := a.to(r)
	if err != nil {
		return nil, err
	}
	var in struct {
		Reason string `json:"reason"`
	}
	if r.ContentLength != 0 {
		if err := body(r, &in); err != nil {
			return nil, err
		}
	}
	done, err := to.Pause(r.Context(), r.PathValue("name"), in.Reason)
	return map[string]bool{"paused": done}, err
}

func (a *api) resume(r *http.Request) (any, error) {
	to, err := a.to(r)
	if err != nil {
		return nil, err
	}
	done, err := to.Resume(r.Context(), r.PathValue("name"))
	return map[string]bool{"resumed": done}, err
}

func (a *api) probe(r *http.Request) (any, error) {
	to, err := a.to(r)
	if err != nil {
		return nil, err
	}
	err = to.Probe(r.Context(), r.PathValue("name"))
	return map[string]bool{"probed": err == nil}, err
}

// replayRows is the maximum number of events that a request replays: it ends
// within the time limit of an answer.
const replayRows = 10_000

// replayRequest selects events of the history.
type replayRequest struct {
	Destination    string       `json:"destination"`
	Since          time.Time    `json:"since"`
	Until          time.Time    `json:"until"`
	Types          []string     `json:"types"`
	AggregateTypes []string     `json:"aggregate_types"`
	Tenants        []string     `json:"tenants"`
	AggregateID    string       `json:"aggregate_id"`
	Limit          int64        `json:"limit"`
	DryRun         bool         `json:"dry_run"`
	After          *view.Cursor `json:"after"`
}

func (a *api) replay(r *http.Request) (any, error) {
	to, err := a.to(r)
	if err != nil {
		return nil, err
	}
	var in replayRequest
	if err := body(r, &in); err != nil {
		return nil, err
	}
	q := driver.HistoryQuery{
		Since: in.Since, Until: in.Until, Types: in.Types, AggregateTypes: in.AggregateTypes, Tenants: in.Tenants, AggregateID: in.AggregateID,
	}
	o, err := in.options()
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return dryReplay(r.Context(), to, in.Destination, q)
	}
	done, err := to.Replay(r.Context(), in.Destination, q, o)
	return view.ReplayOf(in.Destination, done), err
}

// options checks the request.
func (in replayRequest) options() (admin.ReplayOptions, error) {
	o := admin.ReplayOptions{Limit: in.Limit}
	switch {
	case in.Destination == "":
		return o, refuse(http.StatusBadRequest, "destination is required")
	case in.Limit < 0 || in.Limit > replayRows:
		return o, refuse(http.StatusBadRequest, fmt.Sprintf("limit: must be a number from 1 to %d", replayRows))
	case in.Limit == 0:
		o.Limit = replayRows
	}
	if in.After == nil {
		return o, nil
	}
	id, err := waybill.ParseID(in.After.ID)
	if err != nil || in.After.At.IsZero() || in.Until.IsZero() {
		return o, refuse(http.StatusBadRequest, "after: must be next of the previous answer, with its until")
	}
	o.After = driver.HistoryCursor{At: in.After.At, ID: id}
	return o, nil
}

func dryReplay(ctx context.Context, to *admin.Destinations, name string, q driver.HistoryQuery) (any, error) {
	n, err := to.CountHistory(ctx, name, q)
	return view.Replay{Destination: name, Matched: n, DryRun: true}, err
}
