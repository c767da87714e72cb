package soak

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
)

// The kinds of notes.
const (
	noteUp      = "up"      // the child has connected
	noteTx      = "tx"      // a transaction ended
	noteBegin   = "begin"   // a relay publishes events
	noteEnd     = "end"     // the broker confirmed events
	noteGot     = "got"     // a consumer received events
	noteAcquire = "acquire" // a relay acquired lanes
	noteSettle  = "settle"  // a relay settled events
	noteAsk     = "ask"     // a request was answered
	noteDie     = "die"     // the child kills itself
	noteErr     = "err"     // an error that is tolerated
	noteSpoil   = "spoil"   // the sabotage was done
)

// The outcomes of transactions.
const (
	committed  = "committed"
	rolledBack = "rolled back"
	uncertain  = "uncertain"
)

// note is a line that a child writes to its parent. The parent has it even if
// the child is killed right after the write.
type note struct {
	Kind string `json:"k"`
	At   int64  `json:"t"` // nanoseconds
	// Text is an outcome, a topic, a key, a place or an error.
	Text  string `json:"x,omitempty"`
	Items []item `json:"i,omitempty"`
	// Value is the answer of a request.
	Value int64 `json:"v,omitempty"`
	// Begun is when a settlement began.
	Begun int64 `json:"b,omitempty"`
}

// item is an event, or a lane.
type item struct {
	ID      waybill.ID `json:"id,omitzero"`
	Lane    int        `json:"l,omitempty"`
	Epoch   int64      `json:"e,omitempty"`
	Seq     int64      `json:"s,omitempty"`
	Payload uint32     `json:"p,omitempty"`
	Headers uint32     `json:"h,omitempty"`
	Window  int        `json:"w,omitempty"`
	Unclean bool       `json:"u,omitempty"`
}

// noter writes notes.
type noter struct {
	mu sync.Mutex
	to io.Writer
}

// note writes a note. A parent that is gone ends the child.
func (n *noter) note(one note) {
	if one.At == 0 {
		one.At = time.Now().UnixNano()
	}
	line, err := json.Marshal(one)
	if err != nil {
		panic(err) // numbers and texts
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = n.to.Write(append(line, '\n'))
}

// failed notes an error that is tolerated.
func (n *noter) failed(what string, err error) {
	n.note(note{Kind: noteErr, Text: what + ": " + err.Error()})
}
