package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Config holds what may be tuned; its zero value is ready.
type Config struct {
	// Retention is how long records of success are kept, by [Inbox.Run]. Defaults to 0, for ever. It must not be shorter than
	// RedeliveryWindow: an event that comes after its record has gone is applied again.
	Retention time.Duration
	// RedeliveryWindow is for how long whoever carries the events may deliver one again: what the broker keeps, dead letters
	// included. Retention needs it.
	RedeliveryWindow time.Duration
	// RetryInterval is how often [Inbox.Run] looks for failed events that are due, in groups that keep them, and tells the observer
	// how the groups stand. Defaults to 1 s; negative: it looks for none, and tells every 10 s.
	RetryInterval time.Duration
	// PurgeInterval is how often [Inbox.Run] removes records. Defaults to 10 minutes.
	PurgeInterval time.Duration
	// Observe is told what becomes of events. Defaults to nothing.
	Observe observe.Hooks
	// Logger gets what nobody else is told. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Inbox is the consumer groups of one database. T is the type of its transactions. It is safe for concurrent use.
type Inbox[T any] struct {
	db     store.Inbox[T]
	cfg    Config
	runner *txrun.Runner[T]
	finish store.Finisher[T] // nil if the store has no outbox

	mu     sync.Mutex
	groups map[string]*Group[T]
	order  []*Group[T]

	turns *turns // of attempts that are counted before they are made
}

// New returns an inbox over a store. It does not touch the database.
func New[T any](db store.Inbox[T], cfg Config) (*Inbox[T], error) {
	if db == nil {
		return nil, errors.New("inbox: the store is nil")
	}
	var errs []error
	if cfg.Retention < 0 || cfg.RedeliveryWindow < 0 || cfg.PurgeInterval < 0 {
		errs = append(errs, errors.New("a duration is negative"))
	}
	switch {
	case cfg.Retention > 0 && cfg.RedeliveryWindow == 0:
		errs = append(errs, errors.New("Config.Retention needs Config.RedeliveryWindow: how long may an event be delivered again?"))
	case cfg.Retention > 0 && cfg.Retention < cfg.RedeliveryWindow:
		errs = append(errs, fmt.Errorf("Config.Retention (%v) is shorter than Config.RedeliveryWindow (%v): an event could come after its record has gone",
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
	i := &Inbox[T]{db: db, cfg: cfg, runner: txrun.NewRunner[T](db, cfg.Logger), groups: make(map[string]*Group[T]), turns: newTurns()}
	i.finish, _ = db.(store.Finisher[T])
	return i, nil
}

// Group returns the consumer group of a name, with handlers of its own. It panics if the name or the options are wrong, or there is
// one of this name already: [Options.Validate] checks options that come from elsewhere.
func (i *Inbox[T]) Group(name string, o Options) *Group[T] {
	if name == "" || len(name) > maxName {
		panic(fmt.Sprintf("inbox: a group's name has 1 to %d bytes, and %q has %d", maxName, name, len(name)))
	}
	if err := o.Validate(); err != nil {
		panic(fmt.Sprintf("inbox: group %s: %v", name, err))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.groups[name] != nil {
		panic("inbox: a second group " + name)
	}
	g := &Group[T]{inbox: i, name: name, opts: o.withDefaults(), handlers: make(map[handlerKey]HandlerFunc[T]), busy: make(map[[16]byte]struct{})}
	i.groups[name] = g
	i.order = append(i.order, g)
	return g
}

// maxName is how long a group's name may be, in bytes.
const maxName = 255

// all returns the groups in the order in which they were made.
func (i *Inbox[T]) all() []*Group[T] {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]*Group[T](nil), i.order...)
}
