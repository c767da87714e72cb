package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

// Routes returns every route but /metrics.
func Routes() []Route {
	all := []Route{
		{Method: "GET", Path: healthPath, access: open, answer: (*api).health, Help: "Liveness of the process, independent of deliveries"},
		{Method: "GET", Path: readyPath, access: open, answer: (*api).ready, Help: "Readiness: the progress of every relay; 503 and the reason without progress. Names of relays and destinations need read access"},
		{Method: "GET", Path: "/api/stats", access: look, answer: (*api).stats, Help: "Counts of pending, failed and dead events, the results of the last minute and hour, the live relays, and the destinations"},
		{Method: "GET", Path: "/api/throughput", access: look, answer: (*api).throughput, Help: "Deliveries that succeeded and failed, and events that died, over time; filters: since, until (times; the last hour), destination, type; ?step= is the length of a step, such as 5m; by_type=1 returns each type"},
		{Method: "GET", Path: "/api/events", access: look, answer: (*api).events, Help: "Events of a ?state=; filters: type, aggregate_type, aggregate_id, tenant_id, correlation_id, since and until (times of the end, or of the write), error (a part of its text); paging: limit, after; ?destination= lists the backlog of one"},
		{Method: "GET", Path: "/api/events/{id}", access: look, answer: (*api).event, Help: "State and history of one event, the destinations that have yet to receive it, and why it has not arrived; ?payload=1 needs the token"},
		{Method: "GET", Path: "/api/dead", access: look, answer: (*api).dead, Help: "Dead letters; parameters as for /api/events, and cause (of /api/dead/groups)"},
		{Method: "GET", Path: "/api/dead/groups", access: look, answer: (*api).causes, Help: "Causes of dead letters, those with the most letters first, and the number of letters without one; limit; ?destination= names the backlog of one"},
		{Method: "POST", Path: "/api/dead/replay", access: change, answer: letters((*admin.Outbox).Replay, (*admin.Outbox).ReplayAll, view.ReplayedOf), Help: "Replay of dead letters: {\"ids\": […]}, {\"all\": true}, or a filter: cause (of /api/dead/groups), since and until (times of death), error (a part of its text), type, aggregate_type, aggregate_id, tenant_id, correlation_id; with limit (up to 10000, oldest first), rate (dead letters per second, for at most 30 s), dry_run. left of the answer is the number of dead letters that still match. ?destination= names the backlog of one"},
		{Method: "POST", Path: "/api/dead/discard", access: change, answer: letters((*admin.Outbox).Discard, (*admin.Outbox).DiscardAll, view.ChangedOf), Help: "Permanent deletion of dead letters: as for /api/dead/replay"},
		{Method: "GET", Path: "/api/blocked", access: look, answer: (*api).blocked, Help: "Aggregates that wait for one of their events; ?destination= names the backlog of one"},
		{Method: "POST", Path: "/api/blocked/unblock", access: change, answer: changes((*admin.Outbox).Unblock, view.ChangedOf), Help: "Continuation of blocked aggregates: {\"ids\": […]}; ?destination= names the backlog of one"},
		{Method: "GET", Path: "/api/destinations", access: look, answer: (*api).destinations, Help: "Destinations, and counts of what each has yet to receive"},
		{Method: "POST", Path: "/api/destinations/{name}/pause", access: change, answer: (*api).pause, Help: "Pause of a destination: {\"reason\": …}, or no body"},
		{Method: "POST", Path: "/api/destinations/{name}/resume", access: change, answer: (*api).resume, Help: "End of the pause of a destination"},
		{Method: "POST", Path: "/api/destinations/{name}/probe", access: change, answer: (*api).probe, Help: "Attempt at an unavailable destination now"},
		{
			Method: "POST", Path: "/api/replay", access: change, answer: (*api).replay,
			Help: "Delivery of events of the history to a destination again: {\"destination\": …}; filters: since and until (times of the delivery), types, aggregate_types, tenants, aggregate_id; " +
				"limit (up to 10000), dry_run. If the answer has next, another request with it as after, and with until of the answer, continues",
		},
		{Method: "GET", Path: "/api/inbox", access: look, answer: (*api).inbox, Help: "Inbox records of a ?group= without success, or of a ?state=; paging: limit, after_group, after_key"},
		{Method: "POST", Path: "/api/inbox/redrive", access: change, answer: (*api).redrive, Help: "Retry of failed and dead inbox records: {\"group\": …, \"keys\": […]}"},
		{Method: "GET", Path: "/api/audit", access: look, answer: (*api).audit, Help: "Changes of operators, newest first; filters: since, until (times), actor, action; paging: limit, after"},
		{Method: "GET", Path: "/api/keys", access: look, answer: (*api).keys, Help: "Idempotency keys without success, or of a ?state=; filters: tenant_id, operation; paging: limit"},
		{
			Method: "POST", Path: "/api/keys/resolve", access: change, answer: (*api).resolve,
			Help: "Resolution of an uncertain key: {\"tenant_id\": …, \"operation\": …, \"key\": …, and \"failed\": true or \"answer\": {…}}",
		},
	}
	for i := range all {
		all[i].Token = map[access]string{open: "no", look: "if one is set", change: "always"}[all[i].access]
	}
	return all
}

// Paths of the probes.
const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

type health struct {
	Status string    `json:"status"`
	Since  time.Time `json:"since"`
}

func (a *api) health(*http.Request) (any, error) { return health{"alive", a.daemon.Started}, nil }

// readiness is the progress of every relay.
type readiness struct {
	Ready  bool         `json:"ready"`
	Relays []relayState `json:"relays"`
}

type relayState struct {
	Relay  string `json:"relay,omitempty"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Read is the time of the last successful read of the tables.
	Read  time.Time  `json:"read,omitzero"`
	Lanes view.Lanes `json:"lanes"`
	// Down is the number of unavailable destinations, and Paused their names.
	Down   int      `json:"destinations_down,omitempty"`
	Paused []string `json:"paused,omitempty"`
}

func (r readiness) status() int {
	if r.Ready {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// ready reports progress: a running process that delivers nothing is not ready.
// It requires no token, and includes names of relays and destinations only for
// clients with read access, because the names are confidential.
func (a *api) ready(r *http.Request) (any, error) {
	named := a.unlocked() || r.Header.Get("Authorization") != "" && a.authorized(r) == nil
	out := readiness{Ready: true, Relays: []relayState{}}
	for _, r := range a.daemon.Relays {
		if !r.Settings.Relay.Enabled {
			continue
		}
		report := r.Progress.Report()
		s := relayState{
			Reason: r.Progress.Stuck(a.http.ReadyAge), Read: report.Read, Lanes: view.Lanes{Total: report.Total, Owned: report.Owned},
			Down: len(report.Paused),
		}
		if named {
			s.Relay, s.Paused = r.Name(), report.Paused
		}
		s.Ready = s.Reason == ""
		out.Ready = out.Ready && s.Ready
		out.Relays = append(out.Relays, s)
	}
	return out, nil
}

// relay returns the relay of a request: the only one, or the one that ?relay=
// names.
func (a *api) relay(r *http.Request) (*daemon.Relay, error) {
	name := r.URL.Query().Get("relay")
	for _, one := range a.daemon.Relays {
		if one.Name() == name || name == "" && len(a.daemon.Relays) == 1 {
			return one, nil
		}
	}
	if name == "" {
		return nil, refuse(http.StatusBadRequest, "several relays are configured: add ?relay=NAME")
	}
	return nil, refuse(http.StatusNotFound, fmt.Sprintf("relay %q does not exist", name))
}

const (
	defaultLimit = 50
	maxRows      = 1000
)

// limit returns the maximum number of rows of a request.
func limit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxRows {
		return 0, refuse(http.StatusBadRequest, fmt.Sprintf("limit: must be a number from 1 to %d", maxRows))
	}
	return n, nil
}

func (a *api) stats(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	s, err := one.Outbox.Stats(r.Context())
	if err != nil {
		return nil, err
	}
	v := view.StatsOf(s)
	recent, err := one.Outbox.RecentThroughput(r.Context())
	if err != nil && !errors.Is(err, admin.ErrNoThroughput) {
		return nil, err
	}
	v.Throughput = view.RecentOf(recent)
	groups, err := one.Groups.Stats(r.Context(), false)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		v.Groups = append(v.Groups, view.GroupOf(g))
	}
	k, err := one.Keys.Stats(r.Context())
	v.Keys = view.KeysOf(k)
	if err != nil || one.Destinations == nil {
		return v, err
	}
	to, err := one.Destinations.List(r.Context())
	v.Destinations = view.DestinationsOf(to)
	return v, err
}

func (a *api) events(r *http.Request) (any, error) {
	var f store.Filter
	s, ok := view.ParseState(r.URL.Query().Get("state"), &f)
	if !ok {
		return nil, refuse(http.StatusBadRequest, "state: must be ready, delayed, scheduled, failed, dead or delivered")
	}
	return a.list(r, s, f)
}

func (a *api) dead(r *http.Request) (any, error) { return a.list(r, store.Dead, store.Filter{}) }

func (a *api) causes(r *http.Request) (any, error) {
	rows, err := a.outbox(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	found, err := rows.KnownCauses(r.Context(), n) // a GET changes nothing
	if err != nil {
		return nil, err
	}
	return view.CausesOf(found), nil
}

func (a *api) list(r *http.Request, state store.State, f store.Filter) (any, error) {
	rows, err := a.outbox(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	var after int64
	if text := q.Get("after"); text != "" {
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, refuse(http.StatusBadRequest, "after: must be the next position of the previous page")
		}
	}
	f.Type, f.AggregateType, f.AggregateID, f.TenantID = q.Get("type"), q.Get("aggregate_type"), q.Get("aggregate_id"), q.Get("tenant_id")
	f.CorrelationID, f.Error, f.Cause = q.Get("correlation_id"), q.Get("error"), q.Get("cause")
	if f.Since, f.Until, err = bounds(q); err != nil {
		return nil, err
	}
	page, err := rows.List(r.Context(), state, f, after, n)
	if err != nil {
		return nil, err
	}
	return view.PageOf(page), nil
}

func (a *api) event(r *http.Request) (any, error) {
	one, err := a.relay(r)
	if err != nil {
		return nil, err
	}
	id, err := waybill.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "invalid event id")
	}
	payload := r.URL.Query().Get("payload") == "1"
	if payload {
		if err := a.authorized(r); err != nil {
			return nil, err
		}
	}
	j, err := one.Outbox.Journey(r.Context(), id)
	if err != nil {
		return nil, err
	}
	v := view.JourneyOf(j)
	if payload {
		v.Event = v.Event.WithPayload(&j.Event)
	}
	return v, nil
}

func (a *api) blocked(r *http.Request) (any, error) {
	rows, err := a.outbox(r)
	if err != nil {
		return nil, err
	}
	n, err := limit(r)
	if err != nil {
		return nil, err
	}
	all, err := rows.Blocked(r.Context(), n)
	shown := []view.Blocked{}
	for _, b := range all {
		shown = append(shown, view.BlockedOf(b))
	}
	return map[string]any{"blocked": shown}, err
}

// body decodes the JSON of a request and rejects unknown fields, because a
// misspelled filter would select all rows.
func body(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return err
	case err != nil:
		return refuse(http.StatusBadRequest, "invalid JSON in the body: "+err.Error())
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "unexpected data after the JSON")
	}
	return nil
}

// idsOf reads the ids of the events to change.
func idsOf(r *http.Request) ([]waybill.ID, error) {
	var in struct {
		IDs []waybill.ID `json:"ids"`
	}
	if err := body(r, &in); err != nil {
		return nil, err
	}
	return in.IDs, fewIDs(in.IDs)
}

// fewIDs rejects no ids, and too many.
func fewIDs(ids []waybill.ID) error {
	if len(ids) == 0 || len(ids) > maxRows {
		return refuse(http.StatusBadRequest, fmt.Sprintf("ids: must be 1 to %d ids", maxRows))
	}
	return nil
}
