package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// changes returns a handler that changes the events of a request.
func changes[D any](change func(d *admin.Outbox, ctx context.Context, ids ...waybill.ID) (D, error), show func(done D) view.Changed) func(*api, *http.Request) (any, error) {
	return func(a *api, r *http.Request) (any, error) {
		rows, err := a.outbox(r)
		if err != nil {
			return nil, err
		}
		ids, err := idsOf(r)
		if err != nil {
			return nil, err
		}
		done, err := change(rows, r.Context(), ids...)
		return show(done), err
	}
}

// letters returns a handler that changes dead letters: those with the ids of a
// request, or those that match its filter.
func letters[D any](
	byID func(d *admin.Outbox, ctx context.Context, ids ...waybill.ID) (D, error),
	all func(d *admin.Outbox, ctx context.Context, f store.Filter, o admin.DeadLetterOptions) (D, error),
	show func(done D) view.Changed,
) func(*api, *http.Request) (any, error) {
	return func(a *api, r *http.Request) (any, error) {
		rows, err := a.outbox(r)
		if err != nil {
			return nil, err
		}
		var in lettersRequest
		if err := body(r, &in); err != nil {
			return nil, err
		}
		o, err := in.options()
		if err != nil {
			return nil, err
		}
		f := in.filter()
		switch {
		case len(in.IDs) > 0:
			done, err := byID(rows, r.Context(), in.IDs...)
			return show(done), err
		case in.DryRun:
			n, err := rows.Count(r.Context(), store.Dead, f)
			return view.Matched{Matched: n, DryRun: true}, err
		}
		done, err := all(rows, r.Context(), f, o)
		if err != nil {
			return nil, err
		}
		v := show(done)
		left, err := rows.Count(r.Context(), store.Dead, f)
		v.Left = &left
		return v, err
	}
}

// lettersRequest selects dead letters.
type lettersRequest struct {
	IDs           []waybill.ID `json:"ids"`
	Cause         string       `json:"cause"`
	Type          string       `json:"type"`
	AggregateType string       `json:"aggregate_type"`
	AggregateID   string       `json:"aggregate_id"`
	TenantID      string       `json:"tenant_id"`
	Since         time.Time    `json:"since"`
	Until         time.Time    `json:"until"`
	Error         string       `json:"error"`
	CorrelationID string       `json:"correlation_id"`
	All           bool         `json:"all"`
	Limit         int64        `json:"limit"`
	Rate          float64      `json:"rate"`
	DryRun        bool         `json:"dry_run"`
}

// lettersTime is the time that a request with a rate may take.
const lettersTime = 30 * time.Second

func (in *lettersRequest) filter() store.Filter {
	return store.Filter{
		Cause: in.Cause, Type: in.Type, AggregateType: in.AggregateType, AggregateID: in.AggregateID, TenantID: in.TenantID,
		Since: in.Since, Until: in.Until, Error: in.Error, CorrelationID: in.CorrelationID,
	}
}

// options checks the request.
func (in *lettersRequest) options() (admin.DeadLetterOptions, error) {
	o := admin.DeadLetterOptions{Limit: in.Limit, Rate: in.Rate}
	some := in.filter() != store.Filter{}
	switch {
	case len(in.IDs) > 0 && (some || in.All):
		return o, refuse(http.StatusBadRequest, "ids and a filter cannot be combined")
	case in.All && some:
		return o, refuse(http.StatusBadRequest, "all and a filter cannot be combined")
	case !some && !in.All && (in.Limit != 0 || in.Rate != 0 || in.DryRun):
		return o, refuse(http.StatusBadRequest, "limit, rate and dry_run need a filter, or all")
	case !some && !in.All:
		return o, fewIDs(in.IDs)
	case in.Limit < 0 || in.Limit > replayRows:
		return o, refuse(http.StatusBadRequest, fmt.Sprintf("limit: must be a number from 1 to %d", replayRows))
	case in.Limit == 0:
		o.Limit = replayRows
	}
	if in.Rate > 0 { // the answer comes within the time limit of a request
		o.Limit = max(min(o.Limit, int64(in.Rate*lettersTime.Seconds())), 1)
	}
	return o, nil
}

func (a *api) inbox(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := store.RecordFilter{Group: q.Get("group")}
	if text := q.Get("state"); text != "" {
		s, err := stateNamed(text, store.InboxProcessing, store.InboxSucceeded, store.InboxFailed, store.InboxDead)
		if err != nil {
			return nil, err
		}
		f.States = []store.InboxState{s}
	}
	var after waybill.ID
	if text := q.Get("after_key"); text != "" {
		if after, err = waybill.ParseID(text); err != nil {
			return nil, refuse(http.StatusBadRequest, "after_key: the last key of the previous page")
		}
	}
	page, err := one.Groups.List(r.Context(), f, q.Get("after_group"), after, n)
	if err != nil {
		return nil, err
	}
	v := view.InboxPage{Records: []view.InboxRecord{}}
	for _, rec := range page.Records {
		v.Records = append(v.Records, view.InboxRecordOf(rec))
	}
	if page.More {
		v.NextGroup, v.NextKey = page.Group, page.Key.String()
	}
	return v, nil
}

// stateNamed returns the state with a name.
func stateNamed[S fmt.Stringer](text string, among ...S) (S, error) {
	var none S
	names := ""
	for _, s := range among {
		if s.String() == text {
			return s, nil
		}
		names += " " + s.String()
	}
	return none, refuse(http.StatusBadRequest, "state: must be one of"+names)
}

func (a *api) redrive(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	var in struct {
		Group string       `json:"group"`
		Keys  []waybill.ID `json:"keys"`
	}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	if in.Group == "" || len(in.Keys) == 0 || len(in.Keys) > maxRows {
		return nil, refuse(http.StatusBadRequest, fmt.Sprintf("group and 1 to %d keys are required", maxRows))
	}
	n, err := one.Groups.Redrive(r.Context(), in.Group, in.Keys...)
	return map[string]int{"redriven": n}, err
}

func (a *api) keys(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	f := store.KeyFilter{Tenant: q.Get("tenant_id"), Operation: q.Get("operation")}
	if text := q.Get("state"); text != "" {
		s, err := stateNamed(text, store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain)
		if err != nil {
			return nil, err
		}
		f.States = []store.KeyState{s}
	}
	after := store.KeyID{Tenant: q.Get("after_tenant"), Operation: q.Get("after_operation"), Key: q.Get("after_key")}
	page, err := one.Keys.List(r.Context(), f, after, n)
	if err != nil {
		return nil, err
	}
	shown := []view.KeyRecord{}
	for _, rec := range page.Records {
		shown = append(shown, view.KeyRecordOf(rec))
	}
	return map[string]any{"keys": shown, "more": page.More}, nil
}

// decided is the retention of a decision about a key.
const decided = 24 * time.Hour

func (a *api) resolve(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	var in struct {
		Tenant    string          `json:"tenant_id"`
		Operation string          `json:"operation"`
		Key       string          `json:"key"`
		Failed    bool            `json:"failed"`
		Answer    json.RawMessage `json:"answer"`
		Ref       string          `json:"ref"`
	}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	if in.Operation == "" || in.Key == "" || in.Failed == (len(in.Answer) > 0) {
		return nil, refuse(http.StatusBadRequest, "operation, key, and exactly one of failed and answer are required")
	}
	id, state := store.KeyID{Tenant: in.Tenant, Operation: in.Operation, Key: in.Key}, store.KeyFailed
	if in.Failed {
		err = one.Keys.RunAgain(r.Context(), id, "an operator decided that the effect did not happen", decided)
	} else {
		state = store.KeySucceeded
		err = one.Keys.Done(r.Context(), id, driver.KeyAnswer{Ref: in.Ref, Result: in.Answer, ContentType: waybill.JSON, Retention: decided})
	}
	return map[string]any{"resolved": err == nil, "state": state.String()}, err
}
