package view

import (
	"time"

	"github.com/waybillhq/waybill/admin"
)

// Destination is a destination and the counts of its backlog.
type Destination struct {
	Name string `json:"name"`
	// PausedAt and Reason are set while the destination is paused.
	PausedAt time.Time `json:"paused_at,omitzero"`
	Reason   string    `json:"reason,omitempty"`
	// ProbeAt is when an operator last asked the relays to try the destination.
	ProbeAt     time.Time `json:"probe_at,omitzero"`
	CreatedAt   time.Time `json:"created_at,omitzero"`
	Ready       int64     `json:"ready"`
	Scheduled   int64     `json:"scheduled"`
	Failed      int64     `json:"failed"`
	Dead        int64     `json:"dead"`
	Holding     int64     `json:"holding"`
	MaxAttempts int       `json:"max_attempts"`
	// BehindLanes is the number of lanes that have events in the backlog.
	BehindLanes int `json:"behind_lanes"`
	// LagSeconds is the age of the oldest event that the destination has yet to
	// receive.
	LagSeconds float64 `json:"lag_seconds"`
	// Troubles are the reasons why the destination does not take the events of
	// relay nodes as they come.
	Troubles []Trouble `json:"troubles,omitempty"`
}

// DestinationOf converts a destination.
func DestinationOf(d admin.Destination) Destination {
	return Destination{
		Name: d.Name, PausedAt: d.PausedAt, Reason: d.Reason, ProbeAt: d.ProbeAt, CreatedAt: d.CreatedAt,
		Ready: d.Ready, Scheduled: d.Scheduled, Failed: d.Failed, Dead: d.Dead, Holding: d.Holding, MaxAttempts: d.MaxAttempts, BehindLanes: d.Behind,
		LagSeconds: d.Lag.Seconds(), Troubles: TroublesOf(d.Troubles),
	}
}

// DestinationsOf converts a list of destinations.
func DestinationsOf(all []admin.Destination) []Destination {
	shown := make([]Destination, 0, len(all))
	for _, d := range all {
		shown = append(shown, DestinationOf(d))
	}
	return shown
}

// Waiting is an event that a destination has yet to receive.
type Waiting struct {
	Destination string    `json:"destination"`
	PausedAt    time.Time `json:"paused_at,omitzero"`
	Reason      string    `json:"reason,omitempty"`
	State       string    `json:"state"`
	Attempts    int       `json:"attempts"`
	Replay      int       `json:"replay,omitempty"`
	Holds       bool      `json:"holds,omitempty"`
	DueAt       time.Time `json:"due_at,omitzero"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	// Final means that the event becomes a dead letter when its turn comes.
	Final bool `json:"final,omitempty"`
	// Behind is the event of the same aggregate that blocks this one.
	Behind *Event `json:"behind,omitempty"`
}

// WaitingOf converts an event at a destination.
func WaitingOf(w admin.Waiting) Waiting {
	v := Waiting{
		Destination: w.Destination.Name, PausedAt: w.Destination.PausedAt, Reason: w.Destination.Reason, State: w.State.String(),
		Attempts: w.Attempts, Replay: w.Replay, Holds: w.Holds, DueAt: w.DueAt, EndedAt: w.EndedAt, LastError: w.LastError, Final: w.Final,
	}
	if w.Behind != nil {
		behind := EventOf(*w.Behind)
		v.Behind = &behind
	}
	return v
}

// Replay is the progress of a replay of delivered events to a destination.
type Replay struct {
	Destination string `json:"destination"`
	// Matched is the number of delivered events that matched, and Replayed the
	// number of those that were put into the destination's backlog.
	Matched  int64     `json:"matched"`
	Replayed int64     `json:"replayed"`
	Until    time.Time `json:"until,omitzero"`
	DryRun   bool      `json:"dry_run,omitempty"`
	// Next continues a replay that has reached its limit.
	Next *Cursor `json:"next,omitempty"`
}

// Cursor is a place in the history.
type Cursor struct {
	At time.Time `json:"at"`
	ID string    `json:"id"`
}

// ReplayOf converts a replay.
func ReplayOf(name string, r admin.HistoryReplay) Replay {
	v := Replay{Destination: name, Matched: r.Matched, Replayed: r.Replayed, Until: r.Until}
	if r.More {
		v.Next = &Cursor{At: r.Next.At, ID: r.Next.ID.String()}
	}
	return v
}

// Restored is the state of an outbox after a restoration.
type Restored struct {
	Epochs int64 `json:"epochs_raised_by"`
	Seqs   int64 `json:"seqs_raised_by"`
	// Pending events may be delivered again: they were written from Since to
	// Until. Events that were written after Until are lost.
	Pending int64     `json:"pending"`
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
}

// RestoredOf converts the result of a restoration.
func RestoredOf(r admin.Restored) Restored {
	return Restored{Epochs: r.Epochs, Seqs: r.Seqs, Pending: r.Pending, Since: r.Since, Until: r.Until}
}
