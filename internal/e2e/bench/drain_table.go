package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// drainFigure is the summary of one contender's turns.
type drainFigure struct {
	drainer
	rates        []float64
	ofFloor      float64 // 0: unknown
	serverMicros float64 // CPU per event, median of the turns
	ownMicros    float64
	statements   float64 // per event
	wal          float64 // bytes per event
	first        time.Duration
	rss          int64
	cut          bool
	stalled      bool
	twice        int64
	inverted     int64
	others       []float64
}

func (f drainFigure) rate() float64 { return median(f.rates) }

// summarize turns turns into figures.
func summarize(drainers []drainer, turns [][]turn) []drainFigure {
	figures := make([]drainFigure, len(drainers))
	floors := make(map[string][]float64)
	for i, d := range drainers {
		f := drainFigure{drainer: d}
		per := func(value func(t turn) float64) float64 {
			var xs []float64
			for _, t := range turns[i] {
				if t.events > 0 {
					xs = append(xs, value(t)/float64(t.events))
				}
			}
			return median(xs)
		}
		f.serverMicros = per(func(t turn) float64 { return float64(t.cost.server.Microseconds()) })
		f.ownMicros = per(func(t turn) float64 { return float64(t.cost.own.Microseconds()) })
		f.statements = per(func(t turn) float64 { return float64(t.cost.statements) })
		f.wal = per(func(t turn) float64 { return float64(t.cost.wal) })
		var firsts []float64
		for _, t := range turns[i] {
			f.rates = append(f.rates, t.rate())
			firsts = append(firsts, float64(t.first))
			f.rss = max(f.rss, t.rss)
			f.cut, f.stalled = f.cut || t.cut, f.stalled || t.stalled
			f.twice += t.twice
			f.inverted += t.inverted
			f.others = append(f.others, t.others)
		}
		f.first = time.Duration(median(firsts))
		if d.yardstick {
			floors[d.group] = f.rates
		}
		figures[i] = f
	}
	for i, f := range figures {
		figures[i].ofFloor = median(ratios(f.rates, floors[f.group]))
	}
	return figures
}

// writeDrainTable writes a table of one plan, in the order of the contenders,
// one part for each group.
func writeDrainTable(out io.Writer, p drainPlan, version string, figures []drainFigure) {
	fmt.Fprintf(out, "drain: %s; %s, %s\n", p.title, version, times(p.rounds))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, group := range groupsOf(figures) {
		fmt.Fprintf(w, "%s\tevents/s\tmin\tmax\tof floor\tserver µs/ev\tGo µs/ev\tstatements/ev\tWAL B/ev\tfirst after\tpeak RSS\t\n", group)
		for _, f := range figures {
			if f.group != group {
				continue
			}
			rates := rate(f.rate())
			if f.cut {
				rates = "~" + rates
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.name, rates, rate(slices.Min(f.rates)), rate(slices.Max(f.rates)),
				orDash(f.ofFloor, "%.0f %%", 100), orDash(f.serverMicros, "%.1f", 1), orDash(f.ownMicros, "%.1f", 1),
				orDash(f.statements, "%.4f", 1), orDash(f.wal, "%.0f", 1), latency(f.first), orDash(float64(f.rss), "%.0f MB", 1.0/(1<<20)))
		}
		fmt.Fprintln(w, "\t\t\t\t\t\t\t\t\t\t\t")
	}
	_ = w.Flush()
	for _, remark := range remarks(p, figures) {
		fmt.Fprintln(out, remark)
	}
	fmt.Fprintln(out)
}

// remarks returns the notes below the figures.
func remarks(p drainPlan, figures []drainFigure) []string {
	var out []string
	if slices.ContainsFunc(figures, func(f drainFigure) bool { return f.cut && !f.stalled }) {
		out = append(out, fmt.Sprintf("~ was stopped after %s: waiting sets its pace, which does not change.", p.limit))
	}
	var once []string
	for _, f := range figures {
		if len(f.rates) < p.rounds {
			once = append(once, f.name)
		}
	}
	if len(once) > 0 {
		out = append(out, "Only one round, because a turn takes long: "+strings.Join(once, "; ")+".")
	}
	if p.pause > 0 {
		out = append(out, fmt.Sprintf("A call takes %s. Waybill's calls hold a batch, but for those of one event; all others hold one.", p.pause))
	}
	for _, f := range figures {
		if f.stalled {
			out = append(out, fmt.Sprintf("%s stalled: for %s it handled nothing, and was stopped.", f.name, p.limit))
		}
		if f.twice > 0 {
			out = append(out, fmt.Sprintf("%s handled %s events more than once.", f.name, thousands(float64(f.twice))))
		}
		if f.inverted > 0 {
			out = append(out, fmt.Sprintf("%s handled %s events after a later one of the same aggregate.", f.name, thousands(float64(f.inverted))))
		}
	}
	var all []float64
	for _, f := range figures {
		all = append(all, f.others...)
	}
	return append(out, disturbance(all)...)
}

// disturbance reports the load of other processes, if any: then the figures are
// not reliable.
func disturbance(others []float64) []string {
	if len(others) == 0 || slices.Max(others) < 0.1 {
		return nil
	}
	return []string{fmt.Sprintf("Other processes took %.0f %% of the machine's CPU during the median turn, and %.0f %% at worst: run it again when nothing else runs.",
		100*median(others), 100*slices.Max(others))}
}

func groupsOf(figures []drainFigure) []string {
	var groups []string
	for _, f := range figures {
		if !slices.Contains(groups, f.group) {
			groups = append(groups, f.group)
		}
	}
	return groups
}

func orDash(x float64, format string, unit float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf(format, x*unit)
}

func times(rounds int) string {
	if rounds == 1 {
		return "1 round"
	}
	return fmt.Sprintf("median of %d rounds", rounds)
}

// drainChart draws the figures.
func drainChart(p drainPlan, s *drainServer, figures []drainFigure) chart {
	c := chart{
		title: fmt.Sprintf("Draining %s events", size(p.size)),
		subtitle: []string{
			"events per second, higher is better; the dashed line is the same work by hand",
			s.version + ", " + sinkName(p.pause) + ", 500-byte payloads, " + times(p.rounds),
		},
		footer: append([]string{machine()}, strings.Join(peerVersions(), ", ")),
		value:  rate,
	}
	if _, more, ok := strings.Cut(p.title, " sink, "); ok {
		c.title += " " + more
	}
	for _, group := range groupsOf(figures) {
		g := barGroup{title: group}
		for _, f := range figures {
			if f.group != group || f.role == roleFloor && !f.yardstick {
				continue
			}
			b := bar{name: f.name, role: f.role, value: f.rate()}
			switch {
			case f.yardstick:
				g.mark = f.rate()
			case f.stalled:
				b.note = "stalled"
			case f.ofFloor > 0:
				b.note = fmt.Sprintf("%.0f %% of the floor", 100*f.ofFloor)
				if f.ofFloor < 0.1 {
					b.note = fmt.Sprintf("%.1f %% of the floor", 100*f.ofFloor)
				}
			}
			g.bars = append(g.bars, b)
		}
		c.groups = append(c.groups, g)
	}
	return c
}

func sinkName(pause time.Duration) string {
	if pause == 0 {
		return "handlers do nothing"
	}
	return fmt.Sprintf("handlers take %s", pause)
}

// peerVersions returns the pinned versions of the compared libraries.
func peerVersions() []string {
	return versions("github.com/riverqueue/river", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/oagudo/outbox", "github.com/jackc/pgx/v5")
}
