package soak

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
)

// life is everything that is known about one event. There is one per event of
// the run in memory, so it is small.
type life struct {
	// contents of the ledger
	written, due     int64 // nanoseconds; due is 0 without a delay
	payload, headers uint32
	amount           int32
	name             int32
	number           int64
	// what the processes said
	begun                  int64 // the first publication
	gotPayload, gotHeaders uint32
	published, received    uint16
	effects                uint16
	topic, arrived         int8
	inLedger, claimed      bool
	denied                 bool // the producer was told of a rollback
}

// lane is what is known about a lane.
type lane struct {
	owner  string // the child that acquired it last
	epochs []epoch
}

// epoch is one ownership of a lane.
type epoch struct {
	number   int64
	owner    string
	acquired int64 // nanoseconds
	settled  int64 // the start of its last accepted settlement
	// seqs maps the positions of this epoch to their events. It is dropped when
	// the epoch is old.
	seqs map[int64]uint64
}

// answers are the answers of a request.
type answers struct {
	value   int64
	count   int
	effects int
}

// tally is the evidence that the processes report. One goroutine uses it at a
// time.
type tally struct {
	findings
	events   map[waybill.ID]*life
	lanes    map[int]*lane
	requests map[string]*answers

	committed, rolledBack, uncertain int
	begun, published, duplicates     int
	received, distinct               int
	asked                            int
	bound                            int
	deaths                           map[string]int
	errors                           map[string]int
	spoiled                          []string
	spoiledAt                        time.Time
	// acquired is told every acquisition of a lane.
	acquired func(by string, lane int, at time.Time)
}

func newTally() *tally {
	return &tally{
		events: make(map[waybill.ID]*life), lanes: make(map[int]*lane), requests: make(map[string]*answers),
		deaths: make(map[string]int), errors: make(map[string]int), acquired: func(string, int, time.Time) {},
	}
}

func (t *tally) life(id waybill.ID) *life {
	l := t.events[id]
	if l == nil {
		l = &life{topic: -1, arrived: -1, name: unordered}
		t.events[id] = l
	}
	return l
}

// add adds a note of a child.
func (t *tally) add(from string, n *note) {
	switch n.Kind {
	case noteTx:
		t.transaction(n)
	case noteBegin:
		t.begin(n)
	case noteEnd:
		t.end(n)
	case noteGot:
		t.got(n)
	case noteAcquire:
		t.acquire(from, n)
	case noteSettle:
		t.settle(n)
	case noteAsk:
		t.ask(n)
	case noteDie:
		t.deaths[n.Text]++
	case noteErr:
		role, _, _ := strings.Cut(from, "#")
		what, _, _ := strings.Cut(n.Text, ":")
		t.errors[strings.TrimRight(role, "0123456789")+" "+what]++
	case noteSpoil:
		text := n.Text
		if len(n.Items) > 0 {
			text += ": " + n.Items[0].ID.String()
		}
		t.spoiled, t.spoiledAt = append(t.spoiled, text), time.Now()
	}
}

func (t *tally) transaction(n *note) {
	switch n.Text {
	case committed:
		t.committed++
	case rolledBack:
		t.rolledBack++
	default:
		t.uncertain++
		return
	}
	for _, i := range n.Items {
		l := t.life(i.ID)
		l.claimed, l.denied = n.Text == committed, n.Text == rolledBack
	}
}

func (t *tally) begin(n *note) {
	for _, i := range n.Items {
		l := t.life(i.ID)
		t.begun++
		if l.begun == 0 || n.At < l.begun {
			l.begun = n.At
		}
		t.position(i)
	}
}

// position notes which event has a position.
func (t *tally) position(i item) {
	e := t.lane(i.Lane).epoch(i.Epoch)
	if e.seqs == nil {
		e.seqs = make(map[int64]uint64)
	}
	hash := binary.BigEndian.Uint64(i.ID[8:])
	if other, ok := e.seqs[i.Seq]; ok && other != hash {
		t.findings.add(Positions, "position %d of lane %d, epoch %d, is that of event %s and of another one", i.Seq, i.Lane, i.Epoch, i.ID)
	}
	e.seqs[i.Seq] = hash
}

func (t *tally) lane(n int) *lane {
	l := t.lanes[n]
	if l == nil {
		l = &lane{}
		t.lanes[n] = l
	}
	return l
}

// epoch returns an epoch of a lane. Notes of several processes arrive in any
// order.
func (l *lane) epoch(number int64) *epoch {
	for i := len(l.epochs) - 1; i >= 0; i-- {
		if l.epochs[i].number == number {
			return &l.epochs[i]
		}
	}
	l.epochs = append(l.epochs, epoch{number: number})
	return &l.epochs[len(l.epochs)-1]
}

func (t *tally) end(n *note) {
	for _, i := range n.Items {
		l := t.life(i.ID)
		t.published++
		if l.published++; l.published > 1 {
			t.duplicates++
		}
	}
}

func (t *tally) got(n *note) {
	at := int8(slices.Index(topics, n.Text)) //nolint:gosec // a short list
	for _, i := range n.Items {
		l := t.life(i.ID)
		t.received++
		l.received++
		if l.received == 1 {
			t.distinct++
			l.arrived, l.gotPayload, l.gotHeaders = at, i.Payload, i.Headers
		}
		if l.arrived != at {
			t.findings.add(Routed, "event %s arrived at the topics %s and %s", i.ID, topics[l.arrived], n.Text)
		}
		if l.gotPayload != i.Payload || l.gotHeaders != i.Headers {
			t.findings.add(Unchanged, "event %s arrived twice, with different contents", i.ID)
		}
	}
}

// keptEpochs is how many epochs of a lane keep their positions in memory.
const keptEpochs = 4

func (t *tally) acquire(from string, n *note) {
	for _, i := range n.Items {
		l := t.lane(i.Lane)
		e := l.epoch(i.Epoch)
		if e.owner != "" {
			t.findings.add(Positions, "epoch %d of lane %d was issued twice: to %s, and to %s", i.Epoch, i.Lane, e.owner, from)
		}
		e.owner, e.acquired, l.owner = from, n.At, from
		if i.Unclean {
			t.bound += i.Window
		}
		for j := range l.epochs {
			if l.epochs[j].number <= i.Epoch-keptEpochs {
				l.epochs[j].seqs = nil
			}
		}
		t.acquired(from, i.Lane, time.Unix(0, n.At))
	}
}

func (t *tally) settle(n *note) {
	for _, i := range n.Items {
		e := t.lane(i.Lane).epoch(i.Epoch)
		e.settled = max(e.settled, n.Begun)
	}
}

func (t *tally) ask(n *note) {
	t.asked++
	a := t.requests[n.Text]
	if a == nil {
		a = &answers{value: n.Value}
		t.requests[n.Text] = a
	}
	a.count++
	if a.value != n.Value {
		t.findings.add(SameAnswer, "request %s was answered with %d and with %d", n.Text, a.value, n.Value)
	}
}

// lanesOf returns the lanes that a child acquired last.
func (t *tally) lanesOf(name string) []int {
	var out []int
	for n, l := range t.lanes {
		if l.owner == name {
			out = append(out, n)
		}
	}
	return out
}
