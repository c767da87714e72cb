package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill/observe"
)

// Config holds what may be tuned; its zero value is ready. A field that is zero has its default.
type Config struct {
	// Name is the relay's name. One outbox has one relay: a node of another name refuses to run beside this one, so that
	// two services cannot drain the same outbox by mistake. Defaults to "relay".
	Name string
	// SinkName says where the events go. The outbox remembers it together with Name, and refuses a
	// relay with another one ([waybill.ErrOtherSink]), so that a relay that was started by mistake
	// does not deliver a service's events elsewhere. Leave passwords out of it. Defaults to
	// "in-process", whatever the sink is: the code of a service may change its sink at any time,
	// and the program waybill, which names its own, is refused.
	SinkName string
	// TakeOver lets the relay replace what the outbox remembers, while no other relay runs. It logs
	// what it replaced. Set it for one start. Defaults to false.
	TakeOver bool
	// NewerTables lets the relay run on tables that have had migrations which this code does not know: for rolling back, if the
	// changelog of the newer version allows it. Defaults to false: [store.ErrNewerTables].
	NewerTables bool
	// Workers is how many calls of the sink run at a time. Defaults to 4.
	Workers int
	// BatchSize is how many events a read, a settlement or a call of the sink holds at most. Defaults to 500.
	BatchSize int
	// HotQueue is how many events that this process has just committed may wait in memory. Those that find it full are
	// read from the table instead. Defaults to 1000; negative: no hot path.
	HotQueue int
	// ColdQueue is how many events that were read from the tables may be ready in memory before
	// the relay stops reading; the last read may add BatchSize to it. Beside those, the sink has
	// up to Workers times BatchSize. Events that wait behind another one of their aggregate are
	// not counted; a lane has at most max(128, (ColdQueue+BatchSize)/lanes) events in memory. The
	// relay does not count bytes. Defaults to 1000.
	ColdQueue int

	// MaxAttempts is how often an event is tried before it is dead. Defaults to 10; negative: for ever.
	MaxAttempts int
	// BackoffBase and BackoffMax shape the delay after a failed attempt: base·2^(n−1), at most max, with jitter between
	// 0.5 and 1.5. Default to 200 ms and 60 s.
	BackoffBase, BackoffMax time.Duration
	// BackoffSeries, if it is not empty, is the delays instead, without jitter; the last repeats.
	BackoffSeries []time.Duration
	// UnknownGrace is how long an event waits for which there is no handler, counted from when it was written: a rolling
	// deploy may bring one. Defaults to 0: it is dead at once.
	UnknownGrace time.Duration
	// OnDead says what becomes of an aggregate one of whose events is dead. Defaults to [Continue].
	OnDead OnDead
	// DeliverTimeout bounds one call of the sink. Defaults to 0: no bound but the lease.
	DeliverTimeout time.Duration

	// Lease is how long a node's lanes stay its own after its last heartbeat: how long others wait before they take over
	// from a node that died. Defaults to 15 s.
	Lease time.Duration
	// Heartbeat is how often the lease is renewed: at most a third of it. Defaults to 5 s.
	Heartbeat time.Duration
	// PollInterval is how often the tables are read when nobody says that there is something to read. Defaults to 2 s.
	PollInterval time.Duration
	// Linger is how long a relay that is busy waits between two reads, and how long a settlement waits for more; while thousands of
	// events a second come, up to twenty times as long. Defaults to 2 ms; negative: not at all.
	Linger time.Duration
	// SweepInterval is how often the relay looks for events whose transactions committed late, stretched so that it
	// takes at most 5 % of the time. Defaults to 1 s.
	SweepInterval time.Duration
	// DrainTimeout is how long Run waits, when its context has ended, for deliveries under way. Defaults to 5 s;
	// negative: not at all.
	DrainTimeout time.Duration

	// HistoryRetention is how long delivered events are kept. Defaults to 7 days; negative: they are not kept at all.
	HistoryRetention time.Duration
	// DeadRetention is how long dead letters are kept. Defaults to 0: until an operator decides.
	DeadRetention time.Duration
	// PurgeInterval is how often what need not be kept any more is deleted. Defaults to 1 h; negative: never, somebody
	// else does it.
	PurgeInterval time.Duration
	// PurgeBatchSize is how many rows are deleted at a time. Defaults to 500.
	PurgeBatchSize int

	// Logger gets what an operator should know. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
	// Observe plugs in metrics and traces.
	Observe observe.Hooks
}

// OnDead says what becomes of an aggregate one of whose events is dead.
type OnDead int

const (
	// Continue says that the dead letter leaves the order, and the aggregate goes on.
	Continue OnDead = iota
	// Block says that the aggregate waits until the dead letter is replayed, discarded or unblocked.
	Block
)

// lapseMargin is the part of the lease that is left unused, so that this node has stopped when others begin.
const lapseMargin = 5

// complete returns the config with its defaults in place, or every field that is wrong.
func (c Config) complete() (Config, error) {
	var errs []error
	def := func(d *time.Duration, name string, usual time.Duration) {
		switch {
		case *d == 0:
			*d = usual
		case *d < 0:
			errs = append(errs, fmt.Errorf("field %s: %v is negative", name, *d))
		}
	}
	off := func(d *time.Duration, usual time.Duration) {
		if *d == 0 {
			*d = usual
		}
	}
	number := func(n *int, name string, usual int) {
		switch {
		case *n == 0:
			*n = usual
		case *n < 0:
			errs = append(errs, fmt.Errorf("field %s: %d is negative", name, *n))
		}
	}
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.SinkName == "" {
		c.SinkName = ownSink
	}
	if len(c.Name) > maxName {
		errs = append(errs, fmt.Errorf("field Name: %d bytes, at most %d", len(c.Name), maxName))
	}
	number(&c.Workers, "Workers", 4)
	number(&c.BatchSize, "BatchSize", 500)
	number(&c.ColdQueue, "ColdQueue", 1000)
	if c.HotQueue == 0 {
		c.HotQueue = 1000
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	def(&c.BackoffBase, "BackoffBase", 200*time.Millisecond)
	def(&c.BackoffMax, "BackoffMax", 60*time.Second)
	for i, d := range c.BackoffSeries {
		if d < 0 {
			errs = append(errs, fmt.Errorf("field BackoffSeries[%d]: %v is negative", i, d))
		}
	}
	if c.BackoffBase > c.BackoffMax {
		errs = append(errs, fmt.Errorf("field BackoffBase: %v is more than BackoffMax, %v", c.BackoffBase, c.BackoffMax))
	}
	def(&c.Lease, "Lease", 15*time.Second)
	if c.Heartbeat == 0 {
		c.Heartbeat = min(5*time.Second, c.Lease/3)
	}
	def(&c.Heartbeat, "Heartbeat", 5*time.Second)
	if c.Heartbeat > c.Lease/3 {
		errs = append(errs, fmt.Errorf("field Heartbeat: %v is more than a third of Lease, %v", c.Heartbeat, c.Lease))
	}
	def(&c.PollInterval, "PollInterval", 2*time.Second)
	def(&c.SweepInterval, "SweepInterval", time.Second)
	off(&c.Linger, 2*time.Millisecond)
	off(&c.DrainTimeout, 5*time.Second)
	off(&c.HistoryRetention, 7*24*time.Hour)
	off(&c.PurgeInterval, time.Hour)
	number(&c.PurgeBatchSize, "PurgeBatchSize", 500)
	for name, d := range map[string]time.Duration{
		"DeadRetention": c.DeadRetention, "UnknownGrace": c.UnknownGrace, "DeliverTimeout": c.DeliverTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("field %s: %v is negative", name, d))
		}
	}
	if c.OnDead != Continue && c.OnDead != Block {
		errs = append(errs, fmt.Errorf("field OnDead: %d is neither Continue nor Block", c.OnDead))
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// maxName is how long a relay's name may be.
const maxName = 255
