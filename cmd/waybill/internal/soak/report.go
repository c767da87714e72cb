package soak

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Report is the result of a run.
type Report struct {
	Run      string    `json:"run"`
	Verdict  string    `json:"verdict"` // kept or broken
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"` // of load
	Seed     uint64    `json:"seed"`
	Program  string    `json:"program"`
	Store    Server    `json:"store"`
	Broker   Server    `json:"broker"`
	Settings Settings  `json:"settings"`

	Promises []Kept    `json:"promises"`
	Findings []Finding `json:"findings"`
	Sabotage Sabotage  `json:"sabotage,omitempty"`
	Spoiled  []string  `json:"spoiled,omitempty"`

	Counts     Counts         `json:"counts"`
	Duplicates Repeats        `json:"duplicates"`
	Latency    Percentiles    `json:"latency_ms"`
	TakeOver   Percentiles    `json:"take_over_ms"`
	Faults     map[string]int `json:"faults"`
	Errors     map[string]int `json:"errors"`
	Outages    []*outage      `json:"outages"`
}

// Server is a server of the run.
type Server struct {
	Version string `json:"version"`
	Address string `json:"address"`
}

// Settings are the settings of the run.
type Settings struct {
	Rate       float64 `json:"rate"`
	FaultEvery string  `json:"fault_every"`
	Lease      string  `json:"lease"`
	Relays     int     `json:"relays"`
	Producers  int     `json:"producers"`
	Consumers  int     `json:"consumers"`
	Requesters int     `json:"requesters"`
}

// Kept is a promise and whether it was kept.
type Kept struct {
	Promise Promise `json:"promise"`
	Text    string  `json:"text"`
	// Checked is the number of events, requests or lanes that were checked.
	Checked int `json:"checked"`
	Broken  int `json:"broken"`
}

// Counts are the numbers of a run.
type Counts struct {
	Events     int `json:"events"`
	Committed  int `json:"transactions_committed"`
	RolledBack int `json:"transactions_rolled_back"`
	Uncertain  int `json:"transactions_uncertain"`
	Begun      int `json:"publications_begun"`
	Published  int `json:"publications_confirmed"`
	Received   int `json:"received"`
	Applied    int `json:"applied"`
	Requests   int `json:"requests"`
	Answers    int `json:"answers"`
	Epochs     int `json:"lanes_acquired"`
}

// Repeats are the duplicates of a run.
type Repeats struct {
	// Published are events that a relay published again, and Bound is how many
	// the failures of relays explain.
	Published int `json:"published_again"`
	Bound     int `json:"bound"`
	// Received are events that a consumer received again, also because of
	// consumers that failed.
	Received int `json:"received_again"`
}

// Percentiles are durations in milliseconds.
type Percentiles struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func percentiles(h *histogram) Percentiles {
	ms := func(d time.Duration) float64 {
		return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
	}
	return Percentiles{h.n, ms(h.at(50)), ms(h.at(90)), ms(h.at(99)), ms(h.at(99.9)), ms(h.max)}
}

// report describes a run.
func (w *world) report(c *checker) *Report {
	t := w.tally
	r := &Report{
		Run: w.run, Verdict: "kept", Started: w.started.UTC(), Seconds: w.ended.Sub(w.started).Round(time.Millisecond).Seconds(), Seed: w.cfg.Seed,
		Program: w.cfg.Version,
		Store:   Server{w.versions[0], settings.NewSecret(w.spec.Store).String()},
		Broker:  Server{w.versions[1], settings.NewSecret(w.spec.Sink).String()},
		Settings: Settings{
			w.cfg.Rate, w.cfg.FaultEvery.String(), w.cfg.Lease.String(), len(w.fleet.ofRole(roleRelay)), len(w.fleet.ofRole(roleProducer)),
			len(w.fleet.ofRole(roleConsumer)), len(w.fleet.ofRole(roleRequester)),
		},
		Sabotage: w.cfg.Sabotage, Spoiled: t.spoiled[:min(len(t.spoiled), kept)], Findings: append([]Finding{}, t.sorted()...),
		Faults: maps.Clone(w.faults), Errors: t.errors, Outages: append([]*outage{}, w.outages...), Latency: percentiles(&c.latency),
		Duplicates: Repeats{t.duplicates, t.bound, t.received - t.distinct},
	}
	for where, n := range t.deaths {
		r.Faults["death "+where] += n
	}
	var over histogram
	for _, d := range w.takeOver {
		over.add(d)
	}
	r.TakeOver = percentiles(&over)
	epochs := 0
	for _, l := range t.lanes {
		epochs += len(l.epochs)
	}
	r.Counts = Counts{
		c.ledger, t.committed, t.rolledBack, t.uncertain, t.begun, t.published, t.received, c.latency.n, len(t.requests), t.asked, epochs,
	}
	if len(r.Findings) > 0 {
		r.Verdict = "broken"
	}
	r.count(c, epochs)
	return r
}

// count lists the promises.
func (r *Report) count(c *checker, epochs int) {
	delayed, ends := 0, 0
	for _, l := range c.events {
		if l.due > 0 {
			delayed++
		}
	}
	for _, n := range r.Faults {
		ends += n
	}
	checked := map[Promise]int{
		Delivered: c.ledger, CommittedOnly: c.distinct, Outcomes: c.committed + c.rolledBack, Ordered: c.latency.n, Once: c.latency.n, Unchanged: c.received,
		Routed: c.received, NotEarly: delayed, OneEffect: len(c.requests), SameAnswer: c.asked, Positions: c.begun, Fenced: epochs,
		Duplicates: c.published, Running: ends,
	}
	for _, p := range promises {
		r.Promises = append(r.Promises, Kept{p.name, p.text, checked[p.name], c.findings.counts[p.name]})
	}
}

// broken returns the number of broken promises.
func (r *Report) broken() int {
	n := 0
	for _, p := range r.Promises {
		if p.Broken > 0 {
			n++
		}
	}
	return n
}

// Breaks reports whether a promise was broken.
func (r *Report) Breaks(p Promise) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Promise == p })
}

// write writes the report files.
func (r *Report) write(path string, out io.Writer) error {
	if path == "none" {
		return nil
	}
	if path == "" {
		path = "waybill-" + r.Run
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".json", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("soak: the report: %w", err)
	}
	if err := os.WriteFile(path+".txt", []byte(r.Text()), 0o600); err != nil {
		return fmt.Errorf("soak: the report: %w", err)
	}
	fmt.Fprintf(out, "report: %s.txt and %s.json\n", path, path)
	return nil
}

// Text returns the report as text.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: every promise was %s\n\n", r.Run, r.Verdict)
	if r.Verdict != "kept" {
		b.Reset()
		fmt.Fprintf(&b, "%s: %d of %d promises were broken\n\n", r.Run, r.broken(), len(r.Promises))
	}
	fmt.Fprintf(&b, "seed %d, %v of load from %s\n", r.Seed, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Started.Format(time.RFC3339))
	fmt.Fprintf(&b, "program   %s\nstore     %s  %s\nbroker    %s  %s\n", r.Program, r.Store.Version, r.Store.Address, r.Broker.Version, r.Broker.Address)
	s := r.Settings
	fmt.Fprintf(&b, "settings  %g events/s, a fault every %s, lease %s; %d relays, %d producers, %d consumers, %d requesters\n\n", s.Rate, s.FaultEvery, s.Lease,
		s.Relays, s.Producers, s.Consumers, s.Requesters)
	fmt.Fprintf(&b, "%-9s %-15s %10s %8s\n", "", "promise", "checked", "broken")
	for _, p := range r.Promises {
		mark := "kept"
		if p.Broken > 0 {
			mark = "BROKEN"
		}
		fmt.Fprintf(&b, "%-9s %-15s %10d %8d   %s\n", mark, p.Promise, p.Checked, p.Broken, p.Text)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n%s: %s", f.Promise, f.Text)
	}
	if len(r.Findings) > 0 {
		b.WriteString("\n")
	}
	for _, text := range r.Spoiled {
		fmt.Fprintf(&b, "\nsabotage %s: %s", r.Sabotage, text)
	}
	if len(r.Spoiled) > 0 {
		b.WriteString("\n")
	}
	c := r.Counts
	fmt.Fprintf(&b, "\ntransactions  %d committed, %d rolled back, %d uncertain; %d events\n", c.Committed, c.RolledBack, c.Uncertain, c.Events)
	fmt.Fprintf(&b, "deliveries    %d confirmed by the broker, %d received, %d applied\n", c.Published, c.Received, c.Applied)
	fmt.Fprintf(&b, "requests      %d with %d answers\n", c.Requests, c.Answers)
	fmt.Fprintf(&b, "duplicates    %d published again, at most %d explained by failures; %d received again\n", r.Duplicates.Published, r.Duplicates.Bound, r.Duplicates.Received)
	fmt.Fprintf(&b, "latency       %s (from the write to the effect)\n", r.Latency)
	fmt.Fprintf(&b, "take-over     %s (from the end of a relay to the last of its lanes)\n", r.TakeOver)
	list(&b, "faults", r.Faults)
	list(&b, "errors", r.Errors)
	for _, o := range r.Outages {
		fmt.Fprintf(&b, "outage        %s, from %s, %.0f s: %s\n", o.Server, o.From.UTC().Format("15:04:05"), o.Seconds, o.Error)
	}
	return b.String()
}

// String returns the percentiles on one line.
func (p Percentiles) String() string {
	return fmt.Sprintf("p50 %.0f ms, p90 %.0f ms, p99 %.0f ms, p99.9 %.0f ms, max %.0f ms; n %d", p.P50, p.P90, p.P99, p.P999, p.Max, p.N)
}

// list prints counts, one per line.
func list(b *strings.Builder, title string, counts map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "%-13s %6d  %s\n", title, counts[name], name)
		title = ""
	}
}
