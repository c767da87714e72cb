package driver

import (
	"bytes"
	"encoding/json"
	"time"
)

// NodeReport is the report of a node about itself in each heartbeat: the
// content of [store.Node.Report].
type NodeReport struct {
	// Host and PID identify the process. Version is that of the program.
	Host    string
	PID     int
	Version string
	// StartedAt is the time at which the node started, and At that of the
	// report.
	StartedAt, At time.Time
	// LastMinute are the results of deliveries in the minute before the report;
	// nil for programs that do not count them.
	LastMinute *RollupCounts
	// Troubles are the destinations whose events the node holds back, in an
	// order that the relay chooses.
	Troubles []Trouble
	// Omitted is the number of other troubles, for which the report has no
	// room.
	Omitted int
}

// Trouble is the state of a destination whose events a node holds back.
type Trouble struct {
	// Destination is the name of the destination; empty for a relay with one
	// sink. Part is the part of it that is concerned, such as a topic; empty
	// for all of it.
	Destination, Part string
	State             TroubleState
	// Since is the time at which the trouble began.
	Since time.Time
	// Error is the last error of the destination; empty if there was none.
	Error string
	// NextProbe is the time at which the relay tries a destination that is down
	// again.
	NextProbe time.Time
	// Rate is the number of events per second that a rate-limited destination
	// receives from the node.
	Rate float64
}

// TroubleState is the kind of a [Trouble].
type TroubleState string

// The kinds of troubles.
const (
	// TroubleDown: the destination is unavailable. Its events wait for a probe
	// that it accepts.
	TroubleDown TroubleState = "down"
	// TroubleLimited: the events wait for the rate of the destination, which is
	// configured or adapted to its answers.
	TroubleLimited TroubleState = "rate-limited"
)

// MaxNodeReport is the maximum length of the stored form of a report.
const MaxNodeReport = 16 << 10

// The maximum lengths of the texts of a report.
const (
	maxReportName  = 255
	maxReportError = 512
)

// nodeReport is the stored form of a report. Times are microseconds before the
// report, so that the clock of the node does not matter: the lease leads from
// the end of the node's lease to the time of the report.
type nodeReport struct {
	Host     string        `json:"host,omitempty"`
	PID      int           `json:"pid,omitempty"`
	Version  string        `json:"version,omitempty"`
	Up       int64         `json:"up_us"`
	Lease    int64         `json:"lease_us"`
	Troubles []nodeTrouble `json:"troubles,omitempty"`
	Omitted  int           `json:"omitted,omitempty"`
	// Minute are the counts of the last minute: delivered, failed, dead.
	Minute *[3]int64 `json:"minute,omitempty"`
}

type nodeTrouble struct {
	Destination string       `json:"destination,omitempty"`
	Part        string       `json:"part,omitempty"`
	State       TroubleState `json:"state"`
	For         int64        `json:"for_us"`
	Error       string       `json:"error,omitempty"`
	// Next is absent if no probe is planned.
	Next *int64  `json:"next_us,omitempty"`
	Rate float64 `json:"rate,omitempty"`
}

// EncodeNodeReport returns the stored form of a report that a node sends with a
// lease: at most [MaxNodeReport] bytes of JSON without NUL. Texts that are too
// long are cut; the last troubles are counted instead if there is no room for
// them. It returns "" for nil.
func EncodeNodeReport(r *NodeReport, lease time.Duration) string {
	if r == nil {
		return ""
	}
	out := nodeReport{
		Host: cutText(r.Host, maxReportName), PID: r.PID, Version: cutText(r.Version, maxReportName),
		Up: r.At.Sub(r.StartedAt).Microseconds(), Lease: lease.Microseconds(), Omitted: r.Omitted,
	}
	if c := r.LastMinute; c != nil {
		out.Minute = &[3]int64{c.Delivered, c.Failed, c.Dead}
	}
	for _, t := range r.Troubles {
		one := nodeTrouble{
			Destination: cutText(t.Destination, maxReportName), Part: cutText(t.Part, maxReportName), State: t.State,
			For: r.At.Sub(t.Since).Microseconds(), Error: cutText(t.Error, maxReportError), Rate: t.Rate,
		}
		if !t.NextProbe.IsZero() {
			next := t.NextProbe.Sub(r.At).Microseconds()
			one.Next = &next
		}
		out.Troubles = append(out.Troubles, one)
	}
	for {
		text := out.text()
		n := len(out.Troubles)
		if len(text) <= MaxNodeReport || n == 0 {
			return text
		}
		// A quarter at a time: a broker may have thousands of topics.
		drop := max(n/4, 1)
		out.Troubles, out.Omitted = out.Troubles[:n-drop], out.Omitted+drop
	}
}

// text returns the report as JSON. Markup stays as it is, which is shorter.
func (r *nodeReport) text() string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return "" // a rate that is no number
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// DecodeNodeReport reads the stored form of a node's report. expires is the end
// of the node's lease, by the database's clock; so are all times of the result.
// It returns nil for an invalid text: reports are for operators, and no other
// code depends on them.
func DecodeNodeReport(text string, expires time.Time) *NodeReport {
	var in nodeReport
	if text == "" || json.Unmarshal([]byte(text), &in) != nil {
		return nil
	}
	at := expires.Add(-us(in.Lease)).UTC()
	r := &NodeReport{Host: in.Host, PID: in.PID, Version: in.Version, StartedAt: at.Add(-us(in.Up)), At: at, Omitted: in.Omitted}
	if c := in.Minute; c != nil {
		r.LastMinute = &RollupCounts{Delivered: c[0], Failed: c[1], Dead: c[2]}
	}
	for _, t := range in.Troubles {
		one := Trouble{Destination: t.Destination, Part: t.Part, State: t.State, Since: at.Add(-us(t.For)), Error: t.Error, Rate: t.Rate}
		if t.Next != nil {
			one.NextProbe = at.Add(us(*t.Next))
		}
		r.Troubles = append(r.Troubles, one)
	}
	return r
}

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
