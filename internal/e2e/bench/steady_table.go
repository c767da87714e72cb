package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// steadyFigure holds the medians of one contender's turns.
type steadyFigure struct {
	runner
	commits, delivered, ofCeiling float64
	p50, p99, max                 time.Duration
	server, own                   time.Duration // CPU per event
	statements                    float64       // per event
	late, events                  int
	twice                         int64
	others                        []float64
}

func (p steadyPlan) summarize(turns [][]steadyTurn) []steadyFigure {
	var ceiling []float64
	rates := make([][]float64, len(turns))
	for i, r := range p.runners {
		for _, t := range turns[i] {
			rates[i] = append(rates[i], t.commits)
		}
		if r.ceiling {
			ceiling = rates[i]
		}
	}
	figures := make([]steadyFigure, len(turns))
	for i, r := range p.runners {
		f := steadyFigure{runner: r, commits: median(rates[i]), ofCeiling: median(ratios(rates[i], ceiling))}
		middle := func(value func(t steadyTurn) float64) float64 {
			var xs []float64
			for _, t := range turns[i] {
				xs = append(xs, value(t))
			}
			return median(xs)
		}
		duration := func(value func(t steadyTurn) time.Duration) time.Duration {
			return time.Duration(middle(func(t steadyTurn) float64 { return float64(value(t)) }))
		}
		f.delivered = middle(func(t steadyTurn) float64 { return t.delivered })
		f.p50 = duration(func(t steadyTurn) time.Duration { return t.p50 })
		f.p99 = duration(func(t steadyTurn) time.Duration { return t.p99 })
		f.max = duration(func(t steadyTurn) time.Duration { return t.max })
		f.server = duration(func(t steadyTurn) time.Duration { return t.server })
		f.own = duration(func(t steadyTurn) time.Duration { return t.own })
		f.statements = middle(func(t steadyTurn) float64 { return t.statements })
		for _, t := range turns[i] {
			f.late += t.late
			f.events += t.events
			f.twice += t.twice
			f.others = append(f.others, t.others)
		}
		figures[i] = f
	}
	return figures
}

// table runs the plan, and writes its table and its plot.
func (p steadyPlan) table(ctx context.Context, s *pgServer, o output, out, progress io.Writer) error {
	turns, err := p.run(ctx, progress)
	if err != nil {
		return err
	}
	figures := p.summarize(turns)
	p.write(out, s.version, figures)
	return o.plot(progress, p.title, p.chart(s, figures))
}

func (p steadyPlan) write(out io.Writer, version string, figures []steadyFigure) {
	fmt.Fprintf(out, "%s; %s, %s of %s\n", p.title, version, times(p.rounds), p.turn)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "business row and one event a transaction\tcommits/s\tof ceiling\tdelivered/s\tp50\tp99\tmax\tserver µs/ev\tGo µs/ev\tstatements/ev\t")
	for _, f := range figures {
		p50, p99, slowest := "-", "-", "-"
		if f.events > 0 {
			p50, p99, slowest = f.latency(f.p50, 0.5), f.latency(f.p99, 0.99), f.latency(f.max, 1)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.name, rate(f.commits), orDash(f.ofCeiling, "%.0f %%", 100),
			rate(f.delivered), p50, p99, slowest, orDash(f.server.Seconds(), "%.0f", 1e6), orDash(f.own.Seconds(), "%.0f", 1e6), orDash(f.statements, "%.2f", 1))
	}
	_ = w.Flush()
	var all []float64
	for _, f := range figures {
		all = append(all, f.others...)
		if f.late > 0 {
			fmt.Fprintf(out, "%s had not handled %s of %s events %s after the last commit; their latency counts as what it was by then (>).\n",
				f.name, thousands(float64(f.late)), thousands(float64(f.events)), graceTime)
		}
		if f.twice > 0 {
			fmt.Fprintf(out, "%s handled %s events more than once.\n", f.name, thousands(float64(f.twice)))
		}
	}
	for _, remark := range disturbance(all) {
		fmt.Fprintln(out, remark)
	}
	fmt.Fprintln(out)
}

// latency formats the q-quantile of the latencies. If events were not handled
// at all, it is only a lower bound.
func (f steadyFigure) latency(d time.Duration, q float64) string {
	if float64(f.events-f.late) < q*float64(f.events) {
		return ">" + latency(d)
	}
	return latency(d)
}

// chart draws commits per second where producers ran at full speed, and
// latencies where they did not.
func (p steadyPlan) chart(s *pgServer, figures []steadyFigure) chart {
	c := chart{footer: []string{machine(), strings.Join(peerVersions(), ", ")}}
	about := fmt.Sprintf("%s, producers and relay in one process, 500-byte payloads, %s of %s", s.version, times(p.rounds), p.turn)
	g := barGroup{}
	if p.rate == 0 {
		c.title = fmt.Sprintf("%d producers flat out, with the relay beside them", p.producers)
		c.subtitle = []string{"transactions per second, higher is better; the dashed line is without any relay", about}
		c.value = rate
		for _, f := range figures {
			b := bar{name: f.name, role: f.role, value: f.commits}
			switch {
			case f.ceiling:
				g.mark = f.commits
			case f.ofCeiling > 0:
				b.note = fmt.Sprintf("%.0f %%", 100*f.ofCeiling)
			}
			if f.delivered < 0.9*f.commits && f.role != roleFloor {
				b.note += fmt.Sprintf(", but %s/s delivered", rate(f.delivered))
			}
			g.bars = append(g.bars, b)
		}
	} else {
		c.title = fmt.Sprintf("From commit to handler at %s events/s", thousands(float64(p.rate)))
		c.subtitle = []string{"p50 (dark) and p99 (light) on a logarithmic scale, lower is better", about}
		c.log, c.minimum, c.pair = true, 0.01, [2]string{"p50", "p99"}
		c.value = func(ms float64) string { return latency(time.Duration(ms * float64(time.Millisecond))) }
		c.axis = func(ms float64) string {
			return time.Duration(ms * float64(time.Millisecond)).Round(time.Microsecond).String()
		}
		for _, f := range figures {
			b := bar{name: f.name, role: f.role, value: f.p50.Seconds() * 1e3, more: f.p99.Seconds() * 1e3}
			switch {
			case f.late > 0:
				b.note = "and more: it fell behind"
			case f.twice > 0:
				b.note = "some handled twice"
			}
			g.bars = append(g.bars, b)
		}
	}
	c.groups = []barGroup{g}
	return c
}
