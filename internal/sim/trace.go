package sim

import (
	"fmt"
	"time"
)

// step is one line of the trace.
type step struct {
	at   time.Duration
	p    *process
	what string
	ev   *event
	a, b int64
	note string
}

// traceSize is the number of steps that a world remembers.
const traceSize = 1 << 18

// trace holds the last steps of a world.
type trace struct {
	steps []step
	next  int
}

func (t *trace) add(s step) {
	if len(t.steps) < traceSize {
		t.steps = append(t.steps, s)
		return
	}
	t.steps[t.next] = s
	t.next = (t.next + 1) % traceSize
}

// maxLines is the number of steps that a failure prints.
const maxLines = 100

// about returns the last steps that concern an event: those of its aggregate,
// and those of processes and the server.
func (t *trace) about(ev *event) []string {
	var lines []string
	for i := range t.steps {
		s := &t.steps[(t.next+i)%len(t.steps)]
		if s.ev != nil && ev != nil && s.ev.id != ev.id && (ev.agg == nil || s.ev.agg != ev.agg) {
			continue
		}
		lines = append(lines, s.String())
	}
	return lines[max(0, len(lines)-maxLines):]
}

func (s *step) String() string {
	text := fmt.Sprintf("%14v %-8s %-18s", s.at, s.p, s.what)
	if s.ev != nil {
		text += fmt.Sprintf(" event %-5d", s.ev.no)
		if s.ev.parent != nil {
			text += fmt.Sprintf(" at %d", s.ev.to)
		}
	}
	if s.a != 0 || s.b != 0 {
		text += fmt.Sprintf(" %d/%d", s.a, s.b)
	}
	if s.note != "" {
		text += " " + s.note
	}
	return text
}

// note adds a step. Mu is held.
func (w *world) note(p *process, what string, ev *event, a, b int64, note string) {
	w.trace.add(step{at: w.now(), p: p, what: what, ev: ev, a: a, b: b, note: note})
}
