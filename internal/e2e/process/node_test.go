//go:build linux || darwin

package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
)

// spec configures a node.
type spec struct {
	Name   string
	Place  place
	Folder string // of the journal, the gates and the logs
	// Script maps events, by aggregate/number, to the sink's actions; all
	// others succeed at once.
	Script map[string]act
	// Down is the prefix of the numbers of events for an unavailable
	// destination.
	Down string
	// Outage is the number of first deliveries for which the sink reports that
	// the destination is unavailable.
	Outage int
	// Batch makes the sink accept many events at a time.
	Batch bool
	// Pair makes the node deliver to two destinations, of which one flaps, as
	// the seed says.
	Pair bool
	Seed uint64

	Lease, Heartbeat, Drain, Backoff, Poll, Sweep time.Duration
	MaxAttempts, Workers                          int
}

// act is the sink's action for an event.
type act struct {
	// Gate is the name of a gate that the sink waits for.
	Gate string
	// Deaf: the sink waits even after its context has ended.
	Deaf bool
	// Kill: the sink kills its process.
	Kill bool
	// Error is the returned error; empty for success. It may be Permanent.
	Error     string
	Permanent bool
}

// runNode is the main function of a node: a relay, until SIGTERM.
func runNode(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	out, err := os.OpenFile(filepath.Join(s.Folder, s.Name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	notes, err := journal.Open(filepath.Join(s.Folder, journalName), s.Name)
	if err != nil {
		return err
	}
	tables, err := s.Place.open(ctx)
	if err != nil {
		return err
	}
	cfg := relay.Config{
		Lease: s.Lease, Heartbeat: s.Heartbeat, DrainTimeout: s.Drain, MaxAttempts: s.MaxAttempts, Workers: s.Workers,
		BackoffBase: s.Backoff, BackoffMax: max(s.Backoff, time.Second), PollInterval: s.Poll, SweepInterval: s.Sweep,
		PurgeInterval: -1, // purging commits at arbitrary times
		Logger:        slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	var rel *relay.Relay
	if s.Pair {
		rel, err = s.pair(tables, cfg)
	} else {
		rel, err = relay.New(testroles.Of[any](tables.db), s.sink(notes), cfg)
	}
	if err != nil {
		return err
	}
	if err := rel.Run(ctx); err != nil {
		return err
	}
	return tables.close()
}

// journalName is the file in which all nodes of a test record their deliveries.
const journalName = "journal"

// sink returns the node's sink.
func (s spec) sink(notes *journal.Writer) waybill.Sink {
	var up waybill.Sink = &sink{spec: s, notes: notes}
	if s.Batch {
		up = batchSink{up}
	}
	if s.Down == "" {
		return up
	}
	down := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		notes.Note(journal.Down, d)
		return waybill.Unavailable(errDown)
	})
	return relay.Route(func(ev waybill.Event) waybill.Sink {
		if strings.HasPrefix(string(ev.Payload), s.Down) {
			return &down
		}
		return up
	})
}

var errDown = errors.New("connection refused")

// batchSink hides that a sink is serial.
type batchSink struct{ waybill.Sink }

// sink records its deliveries and follows the script. It accepts one event at a
// time, so that as many are in flight as there are workers.
type sink struct {
	spec
	notes *journal.Writer
	given atomic.Int64 // deliveries
}

func (s *sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return relay.SinkFunc(s.deliver).Deliver(ctx, batch)
}

// Serial implements [relay.SerialSink].
func (*sink) Serial() {}

func (s *sink) deliver(ctx context.Context, d waybill.Delivery) error {
	s.notes.Note(journal.Begin, d)
	if s.given.Add(1) <= int64(s.Outage) {
		s.notes.Note(journal.Down, d)
		return waybill.Unavailable(errDown)
	}
	what := s.Script[d.AggregateID+"/"+string(d.Payload)]
	if what.Kill {
		s.notes.Note(journal.Kill, d)
		return errors.Join(syscall.Kill(os.Getpid(), syscall.SIGKILL), s.never())
	}
	if what.Gate != "" {
		if err := s.pass(ctx, what); err != nil {
			s.notes.Note(journal.Ended, d)
			return err
		}
	}
	if what.Permanent {
		s.notes.Note(journal.Refused, d)
		return waybill.Permanent(errors.New(what.Error))
	}
	if what.Error != "" {
		s.notes.Note(journal.Failed, d)
		return errors.New(what.Error)
	}
	s.notes.Note(journal.OK, d)
	return nil
}

// pass waits until a gate is open.
func (s *sink) pass(ctx context.Context, what act) error {
	if what.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(s.Folder, what.Gate)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// never does not return: the signal is pending.
func (*sink) never() error { select {} }
