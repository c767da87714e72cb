// Package demo is a small shop that is disturbed on purpose: orders come over HTTP under idempotency keys, their events go through the outbox, a
// relay and an embedded JetStream to an inventory with an inbox, and while customers repeat themselves, consumers crash and the broker
// goes away, five promises are checked by SQL over the tables.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Config says how the demonstration runs.
type Config struct {
	// Out gets the view and the verdict. Required.
	Out io.Writer
	// Redraw draws the view in place, for a terminal; otherwise it is a line now and then. Color paints it.
	Redraw, Color bool
	// Rows returns how many rows the terminal has at the moment; 0, or nil: not known.
	Rows func() int
	// Dir is where the database and the streams are kept, and stay. Defaults to a folder that is gone afterwards.
	Dir string
	// Listen is where the shop takes orders and shows /metrics: a loopback address. Defaults to any free port.
	Listen string
	// Rate is how many orders come per second. Defaults to 20; [Config.Once] to 40.
	Rate float64
	// Duration is after how long it ends by itself. Defaults to 0: when the context does.
	Duration time.Duration
	// Seed decides who orders what, who repeats himself, and which faults come. Defaults to 1.
	Seed uint64
	// Once runs a short fixed scenario with every fault, and ends.
	Once bool
	// Sabotage breaks a promise on purpose. It runs the scenario of Once.
	Sabotage Sabotage
	// ShowSQL prints the queries of the proof with the verdict.
	ShowSQL bool
}

// Sabotage is a way to break a promise, to see that the proof notices.
type Sabotage string

// The kinds of sabotage.
const (
	// NoSabotage: the shop is only disturbed.
	NoSabotage Sabotage = ""
	// Lose acknowledges a message that the inventory has never seen.
	Lose Sabotage = "lose"
	// Double applies an event once more, outside the inbox.
	Double Sabotage = "double"
	// Reorder swaps two messages of a product.
	Reorder Sabotage = "reorder"
)

// Sabotages are all kinds.
func Sabotages() []string { return []string{string(Lose), string(Double), string(Reorder)} }

// complete puts the defaults in place, and returns everything that is wrong.
func (c *Config) complete() error {
	var errs []error
	if c.Rate == 0 {
		c.Rate = 20
		if c.Once || c.Sabotage != NoSabotage {
			c.Rate = 40
		}
	}
	if c.Rate < 0 || c.Rate > maxRate {
		errs = append(errs, fmt.Errorf("the rate is above 0 and at most %d orders a second, and not %g", maxRate, c.Rate))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("the duration is not negative, as %v is", c.Duration))
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	if host, _, err := net.SplitHostPort(c.Listen); err != nil || !loopback(host) {
		errs = append(errs, fmt.Errorf("the shop listens on a loopback address with a port, such as 127.0.0.1:8080, and not on %q: it knows no customers", c.Listen))
	}
	switch c.Sabotage {
	case NoSabotage, Lose, Double, Reorder:
	default:
		errs = append(errs, fmt.Errorf("there is no sabotage %q", c.Sabotage))
	}
	return errors.Join(errs...)
}

// maxRate is what SQLite, which syncs every order, and one process can do on a small machine.
const maxRate = 500

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ErrConfig says that the configuration is wrong, and nothing was done.
var ErrConfig = errors.New("demo")

// BrokenError says that a promise was broken.
type BrokenError struct {
	// Promise counts from 1; Name says what it promises.
	Promise int
	Name    string
	// Finding says what broke it, with the id of the event.
	Finding string
}

// Error names the promise and the event.
func (e *BrokenError) Error() string {
	return fmt.Sprintf("promise %d is broken (%s): %s", e.Promise, e.Name, e.Finding)
}

// Run runs the demonstration until its end, or until ctx ends; then it delivers what is on its way and prints the verdict. The error is a
// [*BrokenError] if a promise was broken.
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

// play is the whole demonstration, in a world that is open.
func (w *world) play(ctx context.Context) error {
	w.screen.begin(w)
	// What is on its way is finished although ctx may have ended: a verdict over half the events would say nothing.
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
	return p.broken()
}

// drainTimeout is how long the end may take. It is a matter of a second or two.
const drainTimeout = time.Minute

// file is the database's name in its folder.
const file = "shop.db"

// folder returns where the files are, and what removes them. A folder with a database in it is refused: it is somebody's.
func folder(dir string) (string, func() error, error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir, nil, fmt.Errorf("%w: there is a %s in %s already", ErrConfig, file, dir)
		}
		return dir, func() error { return nil }, os.MkdirAll(dir, 0o700)
	}
	dir, err := os.MkdirTemp("", "waybill-demo-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}
