package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
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
	// that are due, in groups that store them ([Options.StoreEvent]), and
	// reports the groups' state to the observer. Defaults to 1 s; negative, or
	// by default if no group stores its events: Run retries no events and
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
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	if cfg.PurgeInterval == 0 {
		cfg.PurgeInterval = 10 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = cfg.Logger.With(slog.String(logkey.Component, "inbox"))
	return &Inbox[T]{
		db: roles.Inbox, finish: roles.Finisher, cfg: cfg, runner: txrun.NewRunner[T](roles.Inbox, cfg.Logger),
		groups: make(map[string]*Group[T]), turns: newTurns(),
	}, nil
}

// validate returns an error that lists every invalid field.
func (c Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Retention >= 0, "Config.Retention: %v is negative", c.Retention)
	check(c.Retention <= 0 || c.RedeliveryWindow != 0, "Config.Retention: requires Config.RedeliveryWindow")
	check(c.Retention <= 0 || c.Retention >= c.RedeliveryWindow,
		"Config.Retention: %v is shorter than Config.RedeliveryWindow (%v)", c.Retention, c.RedeliveryWindow)
	check(c.RedeliveryWindow >= 0, "Config.RedeliveryWindow: %v is negative", c.RedeliveryWindow)
	check(c.PurgeInterval >= 0, "Config.PurgeInterval: %v is negative", c.PurgeInterval)
	return errors.Join(errs...)
}

// Group returns a new consumer group. The name has 1 to 255 bytes and is unique
// in the inbox. The error lists every invalid option.
func (i *Inbox[T]) Group(name string, o Options) (*Group[T], error) {
	if name == "" || len(name) > maxName {
		return nil, fmt.Errorf("inbox: group %q: the name has %d bytes, want 1 to %d", name, len(name), maxName)
	}
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("inbox: group %q: %w", name, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.groups[name] != nil {
		return nil, fmt.Errorf("inbox: group %q: the name is taken", name)
	}
	g := &Group[T]{
		inbox: i, name: name, opts: o.withDefaults(),
		handlers: make(map[handlerKey]HandlerFunc[T]), byType: make(map[string]HandlerFunc[T]), busy: make(map[[16]byte]struct{}),
	}
	i.groups[name] = g
	i.order = append(i.order, g)
	return g, nil
}

// MustGroup is [Inbox.Group] for a name and options that are known to be valid.
// It panics if Group returns an error.
func (i *Inbox[T]) MustGroup(name string, o Options) *Group[T] {
	g, err := i.Group(name, o)
	if err != nil {
		panic(err)
	}
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
