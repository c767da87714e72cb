package soak

import (
	"fmt"
	"io"
	"time"
)

// view prints the state of the run: on a terminal one line that is redrawn,
// otherwise a line every ten seconds.
type view struct {
	out    io.Writer
	redraw bool
	last   time.Time
	drawn  bool
}

func (v *view) begin(w *world) {
	v.line(fmt.Sprintf("%s: seed %d; %s, %s; %v of load at %g events/s, then the verdict", w.run, w.cfg.Seed, w.versions[0], w.versions[1], w.cfg.For, w.cfg.Rate))
}

// line prints a line that stays.
func (v *view) line(text string) {
	if v.drawn {
		fmt.Fprint(v.out, "\r\x1b[K")
		v.drawn = false
	}
	fmt.Fprintln(v.out, text)
}

// show prints the state when it is time to.
func (v *view) show(w *world) {
	every := 10 * time.Second
	if v.redraw {
		every = time.Second
	}
	if time.Since(v.last) < every {
		return
	}
	v.last = time.Now()
	text := w.state()
	if !v.redraw {
		fmt.Fprintln(v.out, text)
		return
	}
	v.drawn = true
	fmt.Fprint(v.out, "\r\x1b[K"+text)
}

// state is the state on one line.
func (w *world) state() string {
	faults, down := 0, ""
	for _, n := range w.faults {
		faults += n
	}
	for _, n := range w.tally.deaths {
		faults += n
	}
	for _, o := range w.outages {
		if o.open {
			down += "; the " + o.Server + " does not answer"
		}
	}
	t := w.tally
	return fmt.Sprintf("%6s %-5s committed %d, rolled back %d, published %d, received %d, requests %d, again %d of at most %d, faults %d, findings %d%s",
		time.Since(w.started).Round(time.Second), w.phase, t.committed, t.rolledBack, t.published, t.distinct, len(t.requests), t.duplicates, t.bound, faults,
		len(t.list), down)
}

// verdict prints the report.
func (v *view) verdict(r *Report) { v.line("\n" + r.Text()) }
