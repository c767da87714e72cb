package shop

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// screen shows the demo: in place on a terminal, and otherwise one line at a
// time.
type screen struct {
	out           io.Writer
	redraw, color bool
	showSQL       bool
	seed          uint64
	url, dir      string
	words         Words
	measured      bool       // the shop has metrics
	kept          bool       // the folder is kept
	rows          func() int // of the terminal; may be nil

	mu     sync.Mutex
	lines  int  // of the frame on the terminal
	ending bool // no new customers
}

func newScreen(cfg Config) *screen {
	return &screen{out: cfg.Out, redraw: cfg.Redraw, color: cfg.Color, showSQL: cfg.ShowSQL, rows: cfg.Rows, seed: cfg.Seed, kept: cfg.Dir != "", words: cfg.Line.Words(), measured: cfg.Metrics != nil && cfg.Metrics != Metrics(noMetrics{})}
}

const (
	// frameInterval is the interval between frames, and lineInterval between
	// lines without a terminal.
	frameInterval = 200 * time.Millisecond
	lineInterval  = time.Second
	// proofShare limits the cost of the proof to this fraction of the time.
	proofShare = 10
)

// show draws the view until ctx ends, with a new proof each time.
func (w *world) show(ctx context.Context) error {
	interval := lineInterval
	if w.screen.redraw {
		interval = frameInterval
	}
	for wait := interval; ; {
		pause(ctx, wait)
		if ctx.Err() != nil {
			return nil
		}
		p, err := w.prove(context.WithoutCancel(ctx), false)
		if err != nil {
			return err
		}
		w.screen.frame(p, w.numbers())
		wait = max(interval, proofShare*p.took)
	}
}

// begin prints the introduction.
func (s *screen) begin(w *world) {
	s.dir = w.dir
	if !s.redraw {
		s.print(fmt.Sprintf("waybill demo: %s, with injected faults; seed %d\ndashboard: %s%s%s\n", s.words.Parts, s.seed, s.url, dashboardPath, s.metrics()))
	}
}

// metrics returns the part of the introduction about metrics.
func (s *screen) metrics() string {
	if !s.measured {
		return ""
	}
	return fmt.Sprintf(", metrics: %s/metrics", s.url)
}

// tell prints a line about a fault. A terminal shows it in its frame.
func (s *screen) tell(line string) {
	if !s.redraw {
		s.print("  fault " + line + "\n")
	}
}

// draining prints that no more customers arrive.
func (s *screen) draining() {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	if !s.redraw {
		s.print("draining: delivering in-flight responses and events\n")
	}
}

// print writes text. A failed write does not stop the shop.
func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, text)
}

// frame shows the current state.
func (s *screen) frame(p *proof, n numbers) {
	if !s.redraw {
		s.print(fmt.Sprintf("%s  %d orders, %d published, %d booked, %d applied; %d retries, %d duplicates suppressed, %d faults; %s\n",
			clock(n.After), p.orders, p.history, p.booked, p.applied, n.retries(), n.suppressed(), n.Faults, s.short(p)))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.draw(p, n)
	if s.rows != nil {
		text = fit(text, s.rows())
	}
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	// Without automatic wrapping, a narrow terminal truncates lines, and the
	// frame keeps its height.
	b.WriteString("\r\x1b[?7l" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J\x1b[?7h")
	s.lines = strings.Count(text, "\n")
	_, _ = io.WriteString(s.out, b.String())
}

// fit returns a frame that leaves the last row of a terminal free for the
// cursor: a higher frame would scroll its own head out of view. Empty lines are
// removed first, then the list of faults, then the last lines.
func fit(text string, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	limit := rows - 1
	if rows <= 0 || len(lines) <= limit {
		return text
	}
	for _, spare := range []func(line string) bool{
		func(line string) bool { return line == "" },
		func(line string) bool { return strings.HasPrefix(line, "    ") },
	} {
		for i := len(lines) - 1; i >= 0 && len(lines) > limit; i-- {
			if spare(lines[i]) {
				lines = slices.Delete(lines, i, i+1)
			}
		}
	}
	return strings.Join(lines[:min(len(lines), max(limit, 1))], "\n") + "\n"
}

func (s *screen) short(p *proof) string {
	if err := p.broken(); err != nil {
		return err.Error()
	}
	return "all promises kept"
}

func (n numbers) retries() int64    { return n.Asked + n.Relay + n.Inventory }
func (n numbers) suppressed() int64 { return n.ByKey + n.ByInbox }

// draw returns the frame. It fits a terminal of 80 columns and 24 lines.
func (s *screen) draw(p *proof, n numbers) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	where := fmt.Sprintf("%s%s POST /orders", s.url, dashboardPath)
	line("%s  %s", s.bold("waybill demo"), s.dim(fmt.Sprintf("%-47s %16s", where, fmt.Sprintf("seed %d   %s", s.seed, clock(n.After)))))
	broker := s.green(fmt.Sprintf("%-13s", "up"))
	if !n.BrokerUp {
		broker = s.red(fmt.Sprintf("%-13s", "down"))
	}
	line("  customers %s shop, outbox %s relay %s %-9s %s inventory", s.dim("────▶"), s.dim("──▶"), s.dim("─────▶"), s.words.Label, s.dim("──▶"))
	line("  %-15s %-16s %-12s %s %d applied", fmt.Sprint(n.Requests, " requests"), fmt.Sprint(p.orders, " orders"), fmt.Sprint(p.history, " sent"), broker, p.applied)
	courier := s.green("open  ")
	if n.Closed {
		courier = s.red("closed")
	}
	line("%37s%s courier %s %d booked", "", s.dim("└────────▶"), courier, p.booked)
	line("")
	line("  %s", s.dim("product     initial  =    left  +    sold     reserved, in order"))
	for _, one := range p.products {
		line("  %-9s %9d %10d %10d     %d of %d orders", one.sku, one.initial, one.left, one.sold, one.reserved, one.orders)
	}
	line("")
	line("  %-22s %5d   customers %d, relay %d, inventory %d", "retries", n.retries(), n.Asked, n.Relay, n.Inventory)
	line("  %-22s %5d   by idempotency key %d, by inbox %d", "duplicates suppressed", n.suppressed(), n.ByKey, n.ByInbox)
	line("  %-22s %5d   %s", "faults injected", n.Faults, s.yellow(n.Last))
	for _, list := range kinds(n.Kinds) {
		line("    %s", s.dim(list))
	}
	line("")
	advice := "Ctrl-C prints the verdict"
	if s.ending {
		advice = "draining"
	}
	line("  %s %s", s.bold("proof"), s.dim(fmt.Sprintf("by SQL over the tables, in %.1f ms; %s", float64(p.took.Microseconds())/1000, advice)))
	s.promises(&b, p)
	return b.String()
}

// promises shows the state of the promises.
func (s *screen) promises(b *strings.Builder, p *proof) {
	for i, one := range promises {
		mark, text := s.green("✔"), p.evidence(i)
		if len(p.findings[i]) > 0 {
			mark, text = s.red("✘"), s.red(p.findings[i][0].String())
		}
		fmt.Fprintf(b, "  %s %d %-31s %s\n", mark, i+1, one.name, text)
	}
}

// evidence summarizes why a promise holds.
func (p *proof) evidence(i int) string {
	switch i {
	case 0:
		return fmt.Sprintf("%d orders, %d events", p.orders, p.pending+p.dead+p.history)
	case 1:
		if onTheWay := p.orders - min(p.applied, p.booked); onTheWay > 0 {
			return fmt.Sprintf("%d applied, %d booked, %d in flight", p.applied, p.booked, onTheWay)
		}
		return fmt.Sprintf("%d applied once, %d booked once", p.applied, p.booked)
	case 2:
		return fmt.Sprintf("left + sold = initial, %d products", len(p.products))
	case 3:
		return "per product, in commit order"
	}
	return fmt.Sprintf("%d keys, %d answers", p.orders, p.answers)
}

// kinds lists the number of faults by boundary.
func kinds(counts [faultCount]int) []string {
	var lines []string
	for _, place := range []struct {
		name        string
		first, last fault
	}{{"customers", answerLost, checkoutFails}, {"publishing", relayRestart, brokerStop}, {"consumers", handlerError, courierClosed}} {
		var words []string
		for kind := place.first; kind <= place.last; kind++ {
			words = append(words, fmt.Sprintf("%d %s", counts[kind], kind))
		}
		lines = append(lines, fmt.Sprintf("%-11s %s", place.name, strings.Join(words, ", ")))
	}
	return lines
}

// verdict prints the result.
func (s *screen) verdict(p *proof, n numbers, left int) {
	if s.redraw {
		s.frame(p, n)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s  %d orders, %d requests, %d faults: %d retries, %d duplicates suppressed\n",
		s.bold("verdict"), p.orders, n.Requests, n.Faults, n.retries(), n.suppressed())
	if !s.redraw {
		fmt.Fprintf(&b, "  %s\n", strings.Join(kinds(n.Kinds), "\n  "))
		s.promises(&b, p)
	}
	if n.Kinds[courierClosed] > 0 {
		fmt.Fprintf(&b, "  while the courier was closed, the inventory was up to %d orders ahead of it\n", p.ahead)
	}
	if left > 0 {
		fmt.Fprintf(&b, "  %s\n", s.red(fmt.Sprintf("%d events were still in flight when the time limit expired.", left)))
	}
	s.outcome(&b, p)
	if s.redraw && p.broken() == nil {
		fmt.Fprintf(&b, "%s\n", s.dim("         --sabotage=lose demonstrates a broken promise, --show-sql prints the queries"))
	}
	if s.kept {
		fmt.Fprintf(&b, "The tables are kept: waybill stats --store sqlite:%s\n", filepath.Join(s.dir, file))
	}
	if s.showSQL {
		for i, one := range promises {
			fmt.Fprintf(&b, "\n-- %d. %s: every row is a violation. ?1 is 1 when no event is in flight.%s;\n", i+1, one.name, one.sql)
		}
	}
	s.print(b.String())
}

// outcome prints whether every promise was kept, and all violations.
func (s *screen) outcome(b *strings.Builder, p *proof) {
	if p.broken() == nil {
		fmt.Fprintf(b, "%s     one event per order, one effect per event, and the stock agrees\n", s.bold(s.green("KEPT")))
		return
	}
	fmt.Fprintln(b, s.bold(s.red("BROKEN")))
	for i, findings := range p.findings {
		for _, f := range findings {
			fmt.Fprintf(b, "  promise %d, %s: %s\n", i+1, promises[i].name, f)
		}
	}
}

func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) bold(text string) string   { return s.paint("1", text) }
func (s *screen) dim(text string) string    { return s.paint("2", text) }
func (s *screen) red(text string) string    { return s.paint("31", text) }
func (s *screen) green(text string) string  { return s.paint("32", text) }
func (s *screen) yellow(text string) string { return s.paint("33", text) }
