package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures an [Inbox]. The zero value is valid.
type Config struct {
	// Retention is how long [Inbox.Run] keeps records of applied events.
	// Defaults to 0, forever. Retention must not be shorter than
	// RedeliveryWindow: an event that is delivered after its record was purged
	// is applied again.
	Retention time.Duration
	// RedeliveryWindow is how long after its first delivery an event may be
	// delivered again: the broker's retention, dead letters included. Required
	// with Retention.
	RedeliveryWindow time.Duration
	// RetryInterval is the interval at which [Inbox.Run] retries failed events
	// that are due, in groups that store them, and reports the groups' state to
	// the observer. Defaults to 1 s; negative: Run retries no events and
	// reports every 10 s.
	RetryInterval time.Duration
	// PurgeInterval is the interval at which [Inbox.Run] purges records.
	// Defaults to 10 minutes.
	PurgeInterval time.Duration
	// Observe receives the outcome of each event. Defaults to no hooks.
	Observe observe.Hooks
	// Logger receives background errors. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Inbox holds the consumer groups of one database. T is the type of its
// transactions. It is safe for concurrent use.
type Inbox[T any] struct {
	db     driver.Inbox[T]
	cfg    Config
	runner *txrun.Runner[T]
	finish driver.Finisher[T] // nil if the store has no outbox

	mu     sync.Mutex
	groups map[string]*Group[T]
	order  []*Group[T]

	turns *turns // for attempts that are counted beforehand
}

// New returns an inbox over a store. It does not touch the database.
func New[T any](db driver.Store[T], cfg Config) (*Inbox[T], error) {
	roles, err := driver.Get(db, "inbox", "Inbox")
	if err != nil {
		return nil, err
	}
	var errs []error
	if cfg.Retention < 0 || cfg.RedeliveryWindow < 0 || cfg.PurgeInterval < 0 {
		errs = append(errs, errors.New("Config: a duration is negative"))
	}
	switch {
	case cfg.Retention > 0 && cfg.RedeliveryWindow == 0:
		errs = append(errs, errors.New("Config.Retention: requires Config.RedeliveryWindow"))
	case cfg.Retention > 0 && cfg.Retention < cfg.RedeliveryWindow:
		errs = append(errs, fmt.Errorf("Config.Retention: %v is shorter than Config.RedeliveryWindow (%v)",
			cfg.Retention, cfg.RedeliveryWindow))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("inbox: %w", errors.Join(errs...))
	}
	if cfg.RetryInterval == 0 {
		cfg.RetryInterval = time.Second
	}
	if cfg.PurgeInterval == 0 {
		cfg.PurgeInterval = 10 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Inbox[T]{
		db: roles.Inbox, finish: roles.Finisher, cfg: cfg, runner: txrun.NewRunner[T](roles.Inbox, cfg.Logger),
		groups: make(map[string]*Group[T]), turns: newTurns(),
	}, nil
}

// Group returns the consumer group of a name, with handlers of its own. It
// panics if the name or the options are invalid, or if a group of this name
// exists. [Options.Validate] checks options from other sources.
func (i *Inbox[T]) Group(name string, o Options) *Group[T] {
	if name == "" || len(name) > maxName {
		panic(fmt.Sprintf("inbox: the group name %q has %d bytes, want 1 to %d", name, len(name), maxName))
	}
	if err := o.Validate(); err != nil {
		panic(fmt.Sprintf("inbox: group %s: %v", name, err))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.groups[name] != nil {
		panic("inbox: duplicate group " + name)
	}
	g := &Group[T]{inbox: i, name: name, opts: o.withDefaults(), handlers: make(map[handlerKey]HandlerFunc[T]), busy: make(map[[16]byte]struct{})}
	i.groups[name] = g
	i.order = append(i.order, g)
	return g
}

// maxName is the maximum length of a group's name, in bytes.
const maxName = 255

// all returns the groups in the order of their creation.
func (i *Inbox[T]) all() []*Group[T] {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]*Group[T](nil), i.order...)
}
