package view

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// Node is a live relay.
type Node struct {
	ID    waybill.ID `json:"id"`
	Relay string     `json:"relay"`
	Lanes int        `json:"lanes"`
	// Host, PID, Version and StartedAt are absent for a relay of a version
	// without reports.
	Host      string    `json:"host,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Version   string    `json:"version,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// ReportedAt is the time of the last heartbeat.
	ReportedAt time.Time `json:"reported_at,omitzero"`
	// LastMinute are the results of deliveries in the minute before that;
	// absent for a relay of a version that does not count them.
	LastMinute *Results  `json:"last_minute,omitempty"`
	Troubles   []Trouble `json:"troubles,omitempty"`
	// OmittedTroubles is the number of others.
	OmittedTroubles int `json:"omitted_troubles,omitempty"`
}

// NodeOf converts a node. now is the database's clock.
func NodeOf(n store.Node, lanes int, now time.Time) Node {
	v := Node{ID: n.ID, Relay: n.Relay, Lanes: lanes}
	if r := admin.ReportOf(n); r != nil {
		v.Host, v.PID, v.Version, v.StartedAt, v.ReportedAt, v.OmittedTroubles = r.Host, r.PID, r.Version, r.StartedAt, r.At, r.Omitted
		if r.LastMinute != nil {
			minute := ResultsOf(*r.LastMinute)
			v.LastMinute = &minute
		}
		v.Troubles = TroublesOf(admin.Troubles(store.Stats{Now: now, Membership: store.Membership{Nodes: []store.Node{n}}}))
	}
	return v
}

// Trouble is the state of a destination that does not take the events of a node
// as they come.
type Trouble struct {
	// Destination is absent for a relay with one sink, and Part for all of the
	// destination.
	Destination string `json:"destination,omitempty"`
	Part        string `json:"part,omitempty"`
	// State is down or rate-limited.
	State       string     `json:"state"`
	Since       time.Time  `json:"since"`
	LastError   string     `json:"last_error,omitempty"`
	NextProbeAt time.Time  `json:"next_probe_at,omitzero"`
	Rate        float64    `json:"rate,omitempty"`
	Node        waybill.ID `json:"node"`
	// Text is the trouble in a sentence, and Commands are the next commands.
	Text     string   `json:"text"`
	Commands []string `json:"commands"`
}

// TroublesOf converts troubles.
func TroublesOf(all []admin.Trouble) []Trouble {
	var out []Trouble
	for _, t := range all {
		out = append(out, Trouble{
			Destination: t.Destination, Part: t.Part, State: string(t.State), Since: t.Since, LastError: t.Error, NextProbeAt: t.NextProbe, Rate: t.Rate,
			Node: t.Node, Text: t.Text, Commands: t.Commands,
		})
	}
	return out
}
