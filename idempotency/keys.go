package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Config holds what may be tuned; its zero value is ready.
type Config struct {
	// TTL is for how long a repeat gets the answer, from its completion, and for how long a key that failed remembers its request. Defaults
	// to 24 h.
	TTL time.Duration
	// ResultTTL is for how long the answer itself is kept, if that is shorter: then a repeat is told that it ran, and no more. Defaults to
	// as long as the record.
	ResultTTL time.Duration
	// Lease is for how long nobody else takes a key whose process has died. While [Do] runs it is renewed at a third of it. Defaults to 30 s.
	Lease time.Duration
	// MaxExecution is for how long a run may take: then its context ends, and its lease is not renewed any more. Defaults to 15 minutes;
	// negative: any time.
	MaxExecution time.Duration
	// MaxResult is how large an answer may be to be kept, in bytes; what phases keep together, too. Defaults to 1 MiB; negative: any size.
	MaxResult int
	// PurgeInterval is how often [Keys.Run] removes what has expired, more or less. Defaults to 1 h; negative: never.
	PurgeInterval time.Duration
	// PurgeBatchSize is how many records it removes at a time. Defaults to 500.
	PurgeBatchSize int
	// CountInterval is how often [Keys.Run] counts, if [Config.Observe] wants to know. Defaults to 30 s; negative: never.
	CountInterval time.Duration
	// Observe is told what becomes of requests. Defaults to nothing.
	Observe observe.Hooks
	// Logger gets what nobody else is told. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Validate returns what is wrong with the configuration: every field at once.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.TTL >= 0, "Config.TTL: %v is negative", c.TTL)
	check(c.ResultTTL >= 0, "Config.ResultTTL: %v is negative", c.ResultTTL)
	check(c.Lease >= 0, "Config.Lease: %v is negative", c.Lease)
	check(c.PurgeBatchSize >= 0, "Config.PurgeBatchSize: %d is negative", c.PurgeBatchSize)
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, usual time.Duration) {
		if *d == 0 {
			*d = usual
		}
	}
	duration(&c.TTL, 24*time.Hour)
	duration(&c.Lease, 30*time.Second)
	duration(&c.MaxExecution, 15*time.Minute)
	duration(&c.PurgeInterval, time.Hour)
	duration(&c.CountInterval, 30*time.Second)
	if c.MaxResult == 0 {
		c.MaxResult = 1 << 20
	}
	if c.PurgeBatchSize == 0 {
		c.PurgeBatchSize = 500
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Keys is the idempotency keys of one database. T is the type of its transactions. It is safe for concurrent use.
type Keys[T any] struct {
	db      store.Keys[T]
	peeker  store.KeyPeeker // the same, if it can
	habit   peekPolicy
	cfg     Config
	runner  *txrun.Runner[T]
	running atomic.Bool // Run

	mu      sync.Mutex
	flights map[store.KeyID]*inflight // what this process is at
}

// New returns keys over a store. It does not touch the database.
func New[T any](db store.Keys[T], cfg Config) (*Keys[T], error) {
	if db == nil {
		return nil, errors.New("idempotency: the store is nil")
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	cfg = cfg.withDefaults()
	peeker, _ := db.(store.KeyPeeker)
	return &Keys[T]{db: db, peeker: peeker, cfg: cfg, runner: txrun.NewRunner[T](db, cfg.Logger), flights: make(map[store.KeyID]*inflight)}, nil
}
