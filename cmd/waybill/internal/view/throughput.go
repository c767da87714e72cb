package view

import (
	"time"

	"github.com/waybillhq/waybill/admin"
)

// Results are numbers of results of deliveries.
type Results struct {
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	Dead      int64 `json:"dead"`
}

// Add adds other results.
func (r *Results) Add(o Results) {
	r.Delivered += o.Delivered
	r.Failed += o.Failed
	r.Dead += o.Dead
}

// ResultsOf converts results.
func ResultsOf(r admin.Results) Results { return Results(r) }

// Recent holds the results of deliveries to a destination lately.
type Recent struct {
	// Destination is absent for a relay with one sink.
	Destination string `json:"destination,omitempty"`
	// LastMinute are the results of the last minute whose counts have arrived,
	// and LastHour those of the sixty minutes that end with it.
	LastMinute Results `json:"last_minute"`
	LastHour   Results `json:"last_hour"`
}

// RecentOf converts results.
func RecentOf(all []admin.RecentResults) []Recent {
	var out []Recent
	for _, r := range all {
		out = append(out, Recent{Destination: r.Destination, LastMinute: ResultsOf(r.Minute), LastHour: ResultsOf(r.Hour)})
	}
	return out
}

// Throughput holds the results of deliveries over time.
type Throughput struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Now is the database's time: a step that has not ended is incomplete.
	Now         time.Time       `json:"now"`
	StepSeconds int64           `json:"step_seconds"`
	Steps       []ThroughputRow `json:"steps"`
}

// ThroughputRow holds the results of a step at a destination.
type ThroughputRow struct {
	// At is the begin of the step. Destination is absent for a relay with one
	// sink. Type is absent for the sum of all types; OtherTypes marks the types
	// that relays counted together.
	At          time.Time `json:"at"`
	Destination string    `json:"destination,omitempty"`
	Type        string    `json:"type,omitempty"`
	OtherTypes  bool      `json:"other_types,omitempty"`
	Results
}

// ThroughputOf converts results; byType: with a row for each type.
func ThroughputOf(t admin.Throughput, byType bool) Throughput {
	v := Throughput{Since: t.Since, Until: t.Until, Now: t.Now, StepSeconds: int64(t.Step / time.Second), Steps: []ThroughputRow{}}
	for _, r := range t.Rows {
		v.Steps = append(v.Steps, ThroughputRow{
			At: r.At, Destination: r.Destination, Type: r.Type, OtherTypes: byType && r.Type == "", Results: ResultsOf(r.RollupCounts),
		})
	}
	return v
}
