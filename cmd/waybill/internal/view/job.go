package view

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store"
)

// Job is a job and the result of its last run.
type Job struct {
	Name string `json:"name"`
	// Kind is empty for a job that the file does not have: a service runs it.
	Kind       string    `json:"kind,omitempty"`
	Enabled    bool      `json:"enabled"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	Next       time.Time `json:"next,omitzero"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	Found      int       `json:"found"`
	Sent       int       `json:"sent"`
	Skipped    int       `json:"skipped"`
	Failed     int       `json:"failed"`
	LastError  string    `json:"last_error,omitempty"`
}

// JobOf converts a job.
func JobOf(name, kind string, enabled bool, r store.JobRecord) Job {
	return Job{
		Name: name, Kind: kind, Enabled: enabled, StartedAt: r.StartedAt, EndedAt: r.EndedAt, Next: r.Next, LeaseUntil: r.LeaseUntil,
		Found: r.Found, Sent: r.Sent, Skipped: r.Skipped, Failed: r.Failed, LastError: r.LastError,
	}
}

// Report is the result of a run.
type Report struct {
	Job       string    `json:"job"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Found     int       `json:"found"`
	Sent      int       `json:"sent"`
	Skipped   int       `json:"skipped"`
	Failed    int       `json:"failed"`
	More      bool      `json:"more,omitempty"`
	DryRun    bool      `json:"dry_run,omitempty"`
	Notes     []string  `json:"notes,omitempty"`
	WouldSend []Missing `json:"would_send,omitempty"`
}

// Missing is an event that a dry run would have sent.
type Missing struct {
	Type          string `json:"type"`
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	TenantID      string `json:"tenant_id,omitempty"`
	DedupKey      string `json:"dedup_key,omitempty"`
}

// ReportOf converts a report.
func ReportOf(r reconcile.Report) Report {
	v := Report{
		Job: r.Job, From: r.Window.From, To: r.Window.To, Found: r.Found, Sent: r.Sent, Skipped: r.Skipped, Failed: r.Failed, More: r.More,
		DryRun: r.DryRun, Notes: r.Notes,
	}
	for _, ev := range r.Events {
		m := Missing{Type: ev.Type, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID, TenantID: ev.TenantID, DedupKey: ev.DedupKey}
		if m.AggregateType == waybill.GlobalAggregate {
			m.AggregateType = ""
		}
		v.WouldSend = append(v.WouldSend, m)
	}
	return v
}
