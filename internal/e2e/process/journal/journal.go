// Package journal is a file in which several processes record their deliveries,
// in the order in which they happened, and from which nothing is lost when one
// of them is killed.
//
// Every record is one write to a file that is opened for appending. The kernel
// orders such writes: if a process records the end of one delivery before
// another process begins the next, the file has them in that order. A process
// that is killed in the middle of a write may leave a partial record, which
// readers skip: the delivery has not begun then, or its end was not reported.
package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/waybillhq/waybill"
)

// The kinds of records.
const (
	// Begin: the sink has received the event.
	Begin = "begin"
	// OK: the sink is about to report success.
	OK = "ok"
	// Failed: the sink is about to report an ordinary error, or to panic.
	Failed = "failed"
	// Refused: the sink is about to report an error that is permanent.
	Refused = "refused"
	// Down: the sink is about to report that its destination is unavailable.
	Down = "down"
	// Later: the sink is about to defer the event without counting an attempt.
	Later = "later"
	// Ended: the delivery's context has ended, and the sink stops.
	Ended = "ended"
	// Kill: the sink is about to kill its process.
	Kill = "kill"
)

// Record is one line.
type Record struct {
	What      string
	ID        string
	Aggregate string
	Number    string // the payload
	Attempt   int
	Replay    int
	Lane      int
	Epoch     int64
	Seq       int64
	Node      string
	PID       int
	At        time.Time
}

// Name returns the event's aggregate and number, for messages.
func (r Record) Name() string { return r.Aggregate + "/" + r.Number }

// String returns the record as text for messages.
func (r Record) String() string {
	return fmt.Sprintf("%s %s %s of %s (attempt %d, replay %d, lane %d, epoch %d, seq %d) by %s, process %d",
		r.At.Format("15:04:05.000000"), r.What, r.Name(), r.ID, r.Attempt, r.Replay, r.Lane, r.Epoch, r.Seq, r.Node, r.PID)
}

// Writer appends to a journal. It is safe for concurrent use.
type Writer struct {
	file *os.File
	node string
}

// Open opens the journal for a node, and creates it if it is missing.
func Open(path, node string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &Writer{file: f, node: node}, nil
}

// Note appends one record about a delivery. A journal that cannot be written
// makes every result meaningless, so Note panics.
func (w *Writer) Note(what string, d waybill.Delivery) {
	p := d.Position
	line, err := json.Marshal(Record{
		What: what, ID: d.ID.String(), Aggregate: d.AggregateID, Number: string(d.Payload), Attempt: d.Attempt, Replay: d.Replay,
		Lane: p.Lane, Epoch: p.Epoch, Seq: p.Seq, Node: w.node, PID: os.Getpid(), At: time.Now(),
	})
	if err != nil {
		panic(err)
	}
	// The leading newline ends a partial record of a killed process.
	if _, err := w.file.Write(append(append([]byte{'\n'}, line...), '\n')); err != nil {
		panic(err)
	}
}

// Close closes the journal.
func (w *Writer) Close() error { return w.file.Close() }

// Read returns the records of a journal, in their order. A journal that was
// never opened has none.
func Read(path string) ([]Record, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Record
	for line := range bytes.Lines(data) {
		var r Record
		if !bytes.HasSuffix(line, []byte("}\n")) || json.Unmarshal(line, &r) != nil {
			continue // empty, or the partial record of a killed process
		}
		out = append(out, r)
	}
	return out, nil
}
