package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures [Keys]. The zero value is valid.
type Config struct {
	// Retention is how long a repeat gets the answer, counted from its
	// completion, and how long a failed key remembers its request. Defaults to
	// 24 h.
	Retention time.Duration
	// ResultRetention is the retention of the answer itself, if shorter than
	// Retention: a later repeat gets [ErrResultExpired]. Defaults to the
	// retention of the record.
	ResultRetention time.Duration
	// Lease is how long the key of a dead process stays claimed. [Do] renews
	// the lease every third of it. Defaults to 30 s.
	Lease time.Duration
	// MaxExecution is the maximum duration of a run: after it the run's context
	// ends, and its lease is not renewed. Defaults to 15 minutes; negative: no
	// limit.
	MaxExecution time.Duration
	// MaxResult is the maximum size of a stored answer, in bytes, and of all
	// stored phase results together. Defaults to 1 MiB; negative: no limit.
	MaxResult int
	// PurgeInterval is the approximate interval between purges of expired
	// records by [Keys.Run]. Defaults to 1 h; negative: never.
	PurgeInterval time.Duration
	// PurgeBatchSize is the maximum number of records per purge batch. Defaults
	// to 500.
	PurgeBatchSize int
	// CountInterval is the interval at which [Keys.Run] counts keys, if
	// [Config.Observe] has a hook for that. Defaults to 30 s; negative: never.
	CountInterval time.Duration
	// Observe receives the outcomes of requests. Defaults to no hooks.
	Observe observe.Hooks
	// Logger receives background errors. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Retention >= 0, "Config.Retention: %v is negative", c.Retention)
	check(c.ResultRetention >= 0, "Config.ResultRetention: %v is negative", c.ResultRetention)
	check(c.Lease >= 0, "Config.Lease: %v is negative", c.Lease)
	check(c.PurgeBatchSize >= 0, "Config.PurgeBatchSize: %d is negative", c.PurgeBatchSize)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("idempotency: %w", err)
	}
	return nil
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	duration(&c.Retention, 24*time.Hour)
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

// Keys manages the idempotency keys of one database. T is the type of its
// transactions. It is safe for concurrent use.
type Keys[T any] struct {
	core[T]
	policy  peekPolicy
	flights inflights
	running atomic.Bool // whether Run is active
}

// New returns keys over a store. It does not access the database.
func New[T any](db driver.Store[T], cfg Config) (*Keys[T], error) {
	roles, err := driver.Get(db, "idempotency", "Keys")
	if err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Logger = cfg.Logger.With(slog.String(logkey.Component, "idempotency"))
	peeker, _ := roles.Keys.(driver.KeyPeeker)
	return &Keys[T]{
		core:    core[T]{db: roles.Keys, peeker: peeker, cfg: cfg, runner: txrun.NewRunner[T](roles.Keys, cfg.Logger)},
		flights: inflights{by: make(map[store.KeyID]*inflight)},
	}, nil
}
