// Package soak runs an outbox, its relays, consumers and idempotent requests in
// child processes, on a database and a broker of the user, kills, pauses and
// stops the processes, and checks at the end that every promise was kept.
//
// Producers note each event in a ledger in the same transaction, and consumers
// each effect in the transaction of their inbox. The checker compares both with
// what the processes reported while they ran.
package soak

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Config is the configuration of a soak.
type Config struct {
	// Store and Sink are the database and the broker. A store without a URL is
	// a SQLite file in a temporary folder; a sink without a URL is a JetStream
	// server in this process.
	Store settings.Store
	Sink  settings.Sink
	// For is the time during which there is load, and faults. Defaults to 2
	// minutes.
	For time.Duration
	// Events ends the load earlier, after this number of committed
	// transactions. Defaults to 0: no limit.
	Events int
	// Rate is the number of events per second. Defaults to 100.
	Rate float64
	// FaultEvery is the mean time between two faults of the parent. Defaults to
	// 1500 ms.
	FaultEvery time.Duration
	// Lease is the lease of the relays. Defaults to 3 s.
	Lease time.Duration
	// Seed determines the faults, and the work of each process. Defaults to a
	// random one.
	Seed uint64
	// Sabotage breaks a promise on purpose.
	Sabotage Sabotage
	// Report is the path of the report without its extension. Defaults to
	// waybill-RUN in the current folder; "none": no files.
	Report string
	// Keep keeps the tables, the topics and the logs.
	Keep bool

	// Out receives the view and the verdict.
	Out io.Writer
	// Redraw draws the view in place, for a terminal.
	Redraw bool
	// Command runs a child process: this program, with the arguments that lead
	// to [Child] if [IsChild].
	Command []string
	// Version is the version of this program.
	Version string
}

// ErrConfig reports an invalid configuration; nothing was done.
var ErrConfig = errors.New("soak")

// ErrNotDone reports that a sabotage found no opportunity.
var ErrNotDone = errors.New("soak: the sabotage did not happen")

// BrokenError reports broken promises.
type BrokenError struct{ Report *Report }

// Error names the promises, and one finding.
func (e *BrokenError) Error() string {
	first := e.Report.Findings[0]
	if n := e.Report.broken(); n > 1 {
		return fmt.Sprintf("%d promises are broken, the first is %s: %s", n, first.Promise, first.Text)
	}
	return fmt.Sprintf("the promise %s is broken: %s", first.Promise, first.Text)
}

// complete sets the defaults.
func (c *Config) complete() error {
	def := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	def(&c.For, 2*time.Minute)
	def(&c.FaultEvery, 1500*time.Millisecond)
	def(&c.Lease, 3*time.Second)
	if c.Rate == 0 {
		c.Rate = 100
	}
	if c.Seed == 0 {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		c.Seed = 1 + uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
	}
	switch {
	case c.For < 0 || c.FaultEvery < 0 || c.Rate < 0 || c.Events < 0:
		return fmt.Errorf("%w: a duration, a rate or a number is negative", ErrConfig)
	case c.Lease < time.Second:
		return fmt.Errorf("%w: lease %v is less than 1s", ErrConfig, c.Lease)
	case c.Sabotage != "" && sabotages[c.Sabotage].role == "":
		return fmt.Errorf("%w: unknown sabotage %q", ErrConfig, c.Sabotage)
	}
	return nil
}

// newRun returns the name of a run. It is not drawn from the seed: two runs of
// one seed have different tables.
func newRun() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return runPrefix + hex.EncodeToString(b[:])
}

const runPrefix = "soak_"

var runForm = regexp.MustCompile(`^soak_[0-9a-f]{8}$`)

// Run runs a soak until its time has passed or ctx ends, delivers everything in
// flight, and checks. The error is a [*BrokenError] if a promise was broken.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w, err := open(ctx, cfg, newRun())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return w.soak(ctx)
}

// soak is Run in an open world.
func (w *world) soak(ctx context.Context) (*Report, error) {
	lasting := context.WithoutCancel(ctx)
	w.view.begin(w)
	err := w.load(ctx)
	if err == nil {
		err = w.drain(lasting)
	}
	w.fleet.end()
	if err != nil {
		return nil, err
	}
	report, err := w.judge(lasting)
	if err != nil {
		return nil, err
	}
	w.view.verdict(report)
	if err := report.write(w.cfg.Report, w.cfg.Out); err != nil {
		return report, err
	}
	switch {
	case len(report.Findings) > 0:
		w.cfg.Keep = w.cfg.Keep || w.cfg.Sabotage == ""
		return report, &BrokenError{report}
	case w.cfg.Sabotage != "" && len(w.tally.spoiled) == 0:
		return report, fmt.Errorf("%w: %s found no opportunity within %v", ErrNotDone, w.cfg.Sabotage, w.cfg.For)
	}
	return report, nil
}
