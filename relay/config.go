package relay

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/waybillhq/waybill/observe"
)

// Config configures a relay. Its zero value is ready for use; a zero field has
// its default.
type Config struct {
	// Name is the relay's name. One outbox has one relay: a node with another
	// name refuses to run beside this one, so that two services cannot drain
	// the same outbox by mistake. Defaults to "relay".
	Name string
	// SinkName names the destination of the events. The outbox remembers it
	// together with Name and refuses a relay with another one
	// ([waybill.ErrOtherSink]), so that a relay that was started by mistake
	// does not deliver a service's events elsewhere. It must not contain
	// passwords. Defaults to "in-process" for every sink: a service may then
	// change its sink in code at any time, and the waybill program, which uses
	// a name of its own, is refused.
	SinkName string
	// TakeOver lets the relay replace the sink that the outbox remembers, while
	// no other relay runs. The relay logs what it replaced. Set TakeOver for
	// one start only. Defaults to false.
	TakeOver bool
	// Version is the version of the program, which this node reports to
	// operators. Defaults to that of the main module as the go command recorded
	// it, or to its commit.
	Version string
	// NewerTables lets the relay run on tables that have migrations unknown to
	// this version of the code. Use it to roll back, if the changelog of the
	// newer version allows that. Defaults to false: Run returns
	// [store.ErrNewerTables].
	NewerTables bool
	// Workers is the number of concurrent calls of the sink. Defaults to 4.
	Workers int
	// BatchSize is the maximum number of events in one read, one settlement, or
	// one call of the sink. Defaults to 500.
	BatchSize int
	// HotQueue is the maximum number of events that were just committed by this
	// process and wait in memory. Events that find the queue full are read from
	// the table instead. Defaults to 1000; negative turns the hot path off.
	HotQueue int
	// ColdQueue is the maximum number of events that were read from the tables
	// and wait in memory. Events in flight are not counted: the sink has up to
	// Workers times BatchSize. Up to 64 events with a priority, and 64 of quiet
	// tenants, may be added. Defaults to 2000.
	ColdQueue int
	// MaxBytes is the size of the events in memory, waiting or in flight, at
	// which the relay stops reading: the sum of their payloads and headers. A
	// single event may be larger. Events that this process has just committed
	// may take as much again until the relay takes them. Defaults to 32 MiB;
	// negative means no limit.
	MaxBytes int

	// MaxAttempts is the total number of attempts after which a failed event
	// becomes a dead letter. Defaults to 10; negative means no limit.
	MaxAttempts int
	// BackoffBase and BackoffMax define the delay after the nth failed attempt:
	// BackoffBase·2^(n−1), at most BackoffMax, with jitter between 0.5 and 1.5.
	// Default to 200 ms and 60 s.
	BackoffBase, BackoffMax time.Duration
	// BackoffSeries, if not empty, replaces the computed delays, without
	// jitter. The last delay repeats. Defaults to none.
	BackoffSeries []time.Duration
	// Backoff, if not nil, returns the delay after the nth failed attempt,
	// counted from 1, and replaces BackoffBase, BackoffMax and BackoffSeries. A
	// negative delay counts as 0. It is called from one goroutine and must not
	// block. Defaults to nil.
	Backoff func(attempt int) time.Duration
	// UnknownGrace is how long an event without a handler is deferred, counted
	// from the time when it was written: a rolling deploy may add the handler.
	// Defaults to 0: the event becomes a dead letter at once.
	UnknownGrace time.Duration
	// OnDead decides whether an aggregate continues after one of its events
	// became a dead letter. Defaults to [Continue].
	OnDead OnDead
	// DeliverTimeout limits one call of the sink, which may have a batch of
	// events. An event whose delivery exceeds it has failed. Defaults to 0:
	// only the lease limits the call.
	DeliverTimeout time.Duration

	// Lease is how long a node owns its lanes after its last heartbeat, and so
	// how long other nodes wait before they take over the lanes of a crashed
	// node. Defaults to 15 s.
	Lease time.Duration
	// Heartbeat is the interval between renewals of the lease, at most a third
	// of Lease. Defaults to 5 s, or to a third of Lease if that is less.
	Heartbeat time.Duration
	// PollInterval is the interval between reads of the tables while no
	// notification arrives. Defaults to 2 s.
	PollInterval time.Duration
	// Linger is the pause between two reads of a busy relay, and the time that
	// a settlement waits for more results. At rates of thousands of events per
	// second the relay waits up to twenty times as long. Defaults to 2 ms;
	// negative means no pause.
	Linger time.Duration
	// SweepInterval is the interval between sweeps for events whose
	// transactions committed late. The relay extends it so that sweeps take at
	// most 0.5 % of the time. Defaults to 1 s.
	SweepInterval time.Duration
	// DrainTimeout is how long Run waits for deliveries in flight after its
	// context has ended. Defaults to 5 s; negative means not at all.
	DrainTimeout time.Duration

	// HistoryRetention is the retention of delivered events. Defaults to 7
	// days; negative: delivered events are not kept.
	HistoryRetention time.Duration
	// DeadRetention is the retention of dead letters. Defaults to 0: dead
	// letters are kept until an operator acts on them.
	DeadRetention time.Duration
	// PurgeInterval is the interval between purges of events whose retention
	// has ended. Defaults to 1 h; negative turns purging off, for outboxes that
	// are purged elsewhere.
	PurgeInterval time.Duration
	// PurgeBatchSize is the maximum number of rows that a purge deletes at a
	// time. Defaults to 500.
	PurgeBatchSize int

	// Logger receives the relay's log. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences the relay.
	Logger *slog.Logger
	// Observe holds the hooks for metrics and traces. Defaults to no hooks.
	Observe observe.Hooks
}

// OnDead decides whether an aggregate continues after one of its events became
// a dead letter.
type OnDead int

const (
	// Continue lets the aggregate continue: the dead letter leaves the order.
	Continue OnDead = iota
	// Block makes the aggregate wait until the dead letter is replayed,
	// discarded or unblocked.
	Block
)

// lapseMargin is the fraction of the lease, as a divisor, that is left unused,
// so that this node has stopped when another node starts.
const lapseMargin = 5

// complete returns the config with its defaults, or an error that names every
// invalid field.
func (c Config) complete() (Config, error) {
	var errs []error
	positive := func(d *time.Duration, name string, def time.Duration) {
		switch {
		case *d == 0:
			*d = def
		case *d < 0:
			errs = append(errs, fmt.Errorf("Config.%s: %v is negative", name, *d))
		}
	}
	optional := func(d *time.Duration, def time.Duration) { *d = cmp.Or(*d, def) }
	number := func(n *int, name string, def int) {
		switch {
		case *n == 0:
			*n = def
		case *n < 0:
			errs = append(errs, fmt.Errorf("Config.%s: %d is negative", name, *n))
		}
	}
	notNegative := func(d time.Duration, name string) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("Config.%s: %v is negative", name, d))
		}
	}
	c.Name, c.SinkName = cmp.Or(c.Name, defaultName), cmp.Or(c.SinkName, ownSink)
	if len(c.Name) > maxName {
		errs = append(errs, fmt.Errorf("Config.Name: %d bytes, at most %d", len(c.Name), maxName))
	}
	number(&c.Workers, "Workers", 4)
	number(&c.BatchSize, "BatchSize", 500)
	c.HotQueue = cmp.Or(c.HotQueue, 1000)
	number(&c.ColdQueue, "ColdQueue", 2000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	positive(&c.BackoffBase, "BackoffBase", 200*time.Millisecond)
	if longest := cmp.Or(c.BackoffMax, defaultBackoffMax); longest > 0 && c.BackoffBase > longest {
		errs = append(errs, fmt.Errorf("Config.BackoffBase: %v is more than Config.BackoffMax, %v", c.BackoffBase, longest))
	}
	positive(&c.BackoffMax, "BackoffMax", defaultBackoffMax)
	for i, d := range c.BackoffSeries {
		notNegative(d, fmt.Sprintf("BackoffSeries[%d]", i))
	}
	notNegative(c.UnknownGrace, "UnknownGrace")
	if c.OnDead != Continue && c.OnDead != Block {
		errs = append(errs, fmt.Errorf("Config.OnDead: %d is neither Continue nor Block", c.OnDead))
	}
	notNegative(c.DeliverTimeout, "DeliverTimeout")
	positive(&c.Lease, "Lease", 15*time.Second)
	positive(&c.Heartbeat, "Heartbeat", min(5*time.Second, c.Lease/3))
	if c.Lease > 0 && c.Heartbeat > c.Lease/3 {
		errs = append(errs, fmt.Errorf("Config.Heartbeat: %v is more than a third of Config.Lease, %v", c.Heartbeat, c.Lease))
	}
	positive(&c.PollInterval, "PollInterval", 2*time.Second)
	optional(&c.Linger, 2*time.Millisecond)
	positive(&c.SweepInterval, "SweepInterval", time.Second)
	optional(&c.DrainTimeout, 5*time.Second)
	optional(&c.HistoryRetention, 7*24*time.Hour)
	notNegative(c.DeadRetention, "DeadRetention")
	optional(&c.PurgeInterval, time.Hour)
	number(&c.PurgeBatchSize, "PurgeBatchSize", 500)
	if c.Version == "" {
		info, _ := debug.ReadBuildInfo()
		c.Version = versionOf(info)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// defaultBackoffMax is the default of Config.BackoffMax.
const defaultBackoffMax = 60 * time.Second

// maxName is the maximum length of a relay's name, in bytes.
const maxName = 255
