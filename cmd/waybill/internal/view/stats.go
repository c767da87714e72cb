package view

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// Stats are the counts at one moment.
type Stats struct {
	Now         time.Time `json:"now"`
	Ready       int64     `json:"ready"`
	Scheduled   int64     `json:"scheduled"`
	Failed      int64     `json:"failed"`
	Dead        int64     `json:"dead"`
	Holding     int64     `json:"holding"`
	MaxAttempts int       `json:"max_attempts"`
	// LagSeconds is the age of the oldest ready event.
	LagSeconds float64 `json:"lag_seconds"`
	Lanes      Lanes   `json:"lanes"`
	Nodes      []Node  `json:"nodes"`
	Groups     []Group `json:"groups"`
	Keys       Keys    `json:"keys"`
	// Throughput are the results of the last minute and hour, by destination;
	// absent without results.
	Throughput []Recent `json:"throughput,omitempty"`
	// Destinations is absent if none is registered.
	Destinations []Destination `json:"destinations,omitempty"`
}

// Lanes is the number of lanes, and of those that a live node owns.
type Lanes struct {
	Total int `json:"total"`
	Owned int `json:"owned"`
}

// StatsOf converts stats, without groups and keys.
func StatsOf(s admin.Stats) Stats {
	v := Stats{
		Now: s.Now, Ready: s.Ready, Scheduled: s.Scheduled, Failed: s.Failed, Dead: s.Dead, Holding: s.Holding, MaxAttempts: s.MaxAttempts,
		LagSeconds: s.Lag.Seconds(), Lanes: Lanes{Total: len(s.Lanes)}, Nodes: []Node{}, Groups: []Group{},
	}
	owned := make(map[waybill.ID]int)
	for _, l := range s.Lanes {
		if l.Live {
			v.Lanes.Owned++
			owned[l.Owner]++
		}
	}
	for _, n := range s.Nodes {
		v.Nodes = append(v.Nodes, NodeOf(n, owned[n.ID], s.Now))
	}
	return v
}

// Group holds the counts of a consumer group.
type Group struct {
	Group            string  `json:"group"`
	Processing       int64   `json:"processing"`
	Failed           int64   `json:"failed"`
	Dead             int64   `json:"dead"`
	HighestAttempts  int     `json:"highest_attempts"`
	OldestDueSeconds float64 `json:"oldest_due_seconds"`
}

// GroupOf converts the counts of a group.
func GroupOf(g store.GroupStats) Group {
	return Group{
		Group: g.Group, Processing: g.Processing, Failed: g.Failed, Dead: g.Dead, HighestAttempts: g.HighestAttempts,
		OldestDueSeconds: g.OldestDue.Seconds(),
	}
}

// InboxRecord is the record of an event in a group.
type InboxRecord struct {
	Group       string     `json:"group"`
	Key         waybill.ID `json:"key"`
	EventID     waybill.ID `json:"event_id"`
	TenantID    string     `json:"tenant_id,omitempty"`
	Type        string     `json:"type"`
	State       string     `json:"state"`
	Attempts    int        `json:"attempts"`
	ReceivedAt  time.Time  `json:"received_at,omitzero"`
	LeaseUntil  time.Time  `json:"lease_until,omitzero"`
	NextRetryAt time.Time  `json:"next_retry_at,omitzero"`
	ProcessedAt time.Time  `json:"processed_at,omitzero"`
	LastError   string     `json:"last_error,omitempty"`
	// Kept reports that the event is stored with its record, so that it can be
	// retried without another delivery.
	Kept bool `json:"kept"`
}

// InboxRecordOf converts a record.
func InboxRecordOf(r store.InboxRecord) InboxRecord {
	return InboxRecord{
		Group: r.Group, Key: r.Key, EventID: r.Event, TenantID: r.Tenant, Type: r.Type, State: r.State.String(), Attempts: r.Attempts,
		ReceivedAt: r.ReceivedAt, LeaseUntil: r.LeaseUntil, NextRetryAt: r.NextRetryAt, ProcessedAt: r.ProcessedAt, LastError: r.LastError,
		Kept: len(r.Stored) > 0,
	}
}

// InboxPage is a page of records.
type InboxPage struct {
	Records []InboxRecord `json:"records"`
	// NextGroup and NextKey are the start of the next page; empty on the last
	// page.
	NextGroup string `json:"next_group,omitempty"`
	NextKey   string `json:"next_key,omitempty"`
}

// Keys holds the counts of idempotency keys.
type Keys struct {
	Processing          int64   `json:"processing"`
	Failed              int64   `json:"failed"`
	Uncertain           int64   `json:"uncertain"`
	Lapsed              int64   `json:"lapsed"`
	OldestLapsedSeconds float64 `json:"oldest_lapsed_seconds"`
}

// KeysOf converts the counts of keys.
func KeysOf(k store.KeyStats) Keys {
	return Keys{
		Processing: k.Processing, Failed: k.Failed, Uncertain: k.Uncertain, Lapsed: k.Lapsed, OldestLapsedSeconds: k.OldestLapsed.Seconds(),
	}
}

// KeyRecord is the record of a key, without its answer.
type KeyRecord struct {
	TenantID    string    `json:"tenant_id,omitempty"`
	Operation   string    `json:"operation"`
	Key         string    `json:"key"`
	State       string    `json:"state"`
	Attempts    int       `json:"attempts"`
	Ref         string    `json:"ref,omitempty"`
	Lost        bool      `json:"answer_lost,omitempty"`
	Code        string    `json:"code,omitempty"`
	LastError   string    `json:"last_error,omitempty"`
	CreatedAt   time.Time `json:"created_at,omitzero"`
	LeaseUntil  time.Time `json:"lease_until,omitzero"`
	CompletedAt time.Time `json:"completed_at,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
}

// KeyRecordOf converts a record.
func KeyRecordOf(r store.KeyRecord) KeyRecord {
	return KeyRecord{
		TenantID: r.Tenant, Operation: r.Operation, Key: r.Key, State: r.State.String(), Attempts: r.Attempts, Ref: r.Ref, Lost: r.Lost,
		Code: r.Code, LastError: r.LastError, CreatedAt: r.CreatedAt, LeaseUntil: r.LeaseUntil, CompletedAt: r.CompletedAt, ExpiresAt: r.ExpiresAt,
	}
}
