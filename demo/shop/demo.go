// Package shop is the demo: a small shop with injected faults. Orders arrive
// over HTTP with idempotency keys; their events go through the outbox, a relay
// and a [Line] to an inventory with an inbox, and to a courier, the relay's
// second destination. While customers repeat requests, the inventory is killed,
// the line is interrupted and the courier closes, SQL queries over the tables
// check five promises, and the inventory must not wait for the courier.
//
// The package is for the programs of this repository. It has no stable API.
package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Config is the configuration of the demo.
type Config struct {
	// Out receives the view and the verdict. Required.
	Out io.Writer
	// Line carries the events to the inventory. Required.
	Line Line
	// Metrics observe the shop, and are served at /metrics. Defaults to none.
	Metrics Metrics
	// Redraw draws the view in place, for a terminal; otherwise the view is one
	// line per second. Color uses colors.
	Redraw, Color bool
	// Rows returns the current number of rows of the terminal; 0, or nil:
	// unknown.
	Rows func() int
	// Dir is the folder of the database and the streams, which are kept.
	// Defaults to a temporary folder.
	Dir string
	// Listen is the loopback address of the shop's orders, /dashboard/ and
	// /metrics. Defaults to any free port.
	Listen string
	// Rate is the number of orders per second. Defaults to 20, with
	// [Config.Once] to 40.
	Rate float64
	// Duration is the duration of the demo. Defaults to 0: until the context
	// ends.
	Duration time.Duration
	// Seed determines the orders, the repeated requests and the faults.
	// Defaults to 1.
	Seed uint64
	// Once runs a short fixed scenario with every fault.
	Once bool
	// Sabotage breaks a promise on purpose, in the scenario of Once.
	Sabotage Sabotage
	// ShowSQL prints the queries of the proof with the verdict.
	ShowSQL bool
	// Inspect is called after the verdict, while the shop still answers
	// requests at url. count updates the table seen. For tests.
	Inspect func(ctx context.Context, url string, db *sql.DB, count func() error) error
}

// Sabotage is a way to break a promise, to demonstrate that the proof detects
// it.
type Sabotage string

// The kinds of sabotage.
const (
	// NoSabotage: only faults.
	NoSabotage Sabotage = ""
	// Lose acknowledges an event that the inventory never sees.
	Lose Sabotage = "lose"
	// Double applies an event a second time, outside the inbox.
	Double Sabotage = "double"
	// Reorder swaps two events of a product.
	Reorder Sabotage = "reorder"
)

// Sabotages returns all kinds.
func Sabotages() []string { return []string{string(Lose), string(Double), string(Reorder)} }

// complete sets the defaults, and returns all problems.
func (c *Config) complete() error {
	var errs []error
	if c.Line == nil {
		errs = append(errs, errors.New("no line"))
	}
	if c.Rate == 0 {
		c.Rate = 20
		if c.Once || c.Sabotage != NoSabotage {
			c.Rate = 40
		}
	}
	if c.Rate < 0 || c.Rate > maxRate {
		errs = append(errs, fmt.Errorf("rate %g is not between 0 and %d orders per second", c.Rate, maxRate))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration %v is negative", c.Duration))
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	if host, _, err := net.SplitHostPort(c.Listen); err != nil || !loopback(host) {
		errs = append(errs, fmt.Errorf("listen address %q is not a loopback address with a port, such as 127.0.0.1:8080", c.Listen))
	}
	switch c.Sabotage {
	case NoSabotage, Lose, Double, Reorder:
	default:
		errs = append(errs, fmt.Errorf("unknown sabotage %q", c.Sabotage))
	}
	return errors.Join(errs...)
}

// maxRate is the rate that one process on a small machine can reach with
// SQLite, which syncs every order.
const maxRate = 500

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ErrConfig reports an invalid configuration; nothing was done.
var ErrConfig = errors.New("demo")

// BrokenError reports a broken promise.
type BrokenError struct {
	// Promise is the number of the promise, from 1; Name is its text.
	Promise int
	Name    string
	// Finding describes the violation, with the id of the event.
	Finding string
}

// Error names the promise and the event.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("promise %d is broken (%s): %s", e.Promise, e.Name, e.Finding)
}

// Run runs the demo until its end or until ctx ends; then it delivers all
// events in flight and prints the verdict. The error is a [*BrokenError] if a
// promise was broken.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.complete(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	w, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return w.play(ctx)
}

// play runs the whole demo in an open world.
func (w *world) play(ctx context.Context) error {
	w.screen.begin(w)
	// Events in flight are delivered even if ctx has ended: a verdict over half
	// of the events would be meaningless.
	lasting := context.WithoutCancel(ctx)
	watching, blind := context.WithCancel(lasting)
	defer blind()
	shown := make(chan error, 1)
	go func() { shown <- w.show(watching) }()

	err := w.scenario(ctx)
	left := 0
	if err == nil {
		left, err = w.drain(lasting)
	}
	blind()
	if err = errors.Join(err, <-shown); err != nil {
		return err
	}
	p, err := w.prove(lasting, true)
	if err != nil {
		return err
	}
	w.screen.verdict(p, w.numbers(), left)
	if w.cfg.Inspect != nil {
		err = w.cfg.Inspect(lasting, w.url, w.store.DB(), w.recount)
	}
	return errors.Join(p.broken(), err)
}

// recount updates the table seen.
func (w *world) recount() error {
	w.crossings.writeDown(w.journal)
	return w.journal.flush()
}

// drainTimeout is the time limit for the end of the demo, which normally takes
// a second or two.
const drainTimeout = time.Minute

// file is the name of the database in its folder.
const file = "shop.db"

// folder returns the folder of the files, and a function that removes it. A
// folder with an existing database is refused.
func folder(dir string) (string, func() error, error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir, nil, fmt.Errorf("%w: file %s exists in %s", ErrConfig, file, dir)
		}
		return dir, func() error { return nil }, os.MkdirAll(dir, 0o700)
	}
	dir, err := os.MkdirTemp("", "waybill-demo-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}
