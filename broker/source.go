package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// Source is an origin of messages. A sink consumes them: an inbox group or bus,
// a handler mux, or any other [waybill.Sink]. Two messages of one aggregate are
// never in the same call of the sink, nor in concurrent calls. The context of a
// call outlives the source's context, until [ReceiverConfig.DrainTimeout] has
// passed. A sink that ignores the end of its context prevents the source from
// returning.
type Source interface {
	// Name identifies the source in logs and metrics.
	Name() string
	// Run feeds the consumer until ctx ends. Run then takes no more messages,
	// finishes those in flight, returns the rest to the broker and returns nil.
	// Run reconnects by itself; it returns an error only if no retry can
	// succeed, for example if the stream does not exist.
	Run(ctx context.Context, c waybill.Sink) error
}

// ReceiverConfig configures the receiving side of any source. The zero value is
// valid; zero fields have their defaults.
type ReceiverConfig struct {
	// Workers is the number of concurrent calls of the consumer. Defaults to 4.
	Workers int
	// BatchSize is the maximum number of messages in one call of the consumer.
	// Defaults to 64.
	BatchSize int
	// MaxInFlight is the maximum number of messages that are received and not
	// yet answered. Defaults to 1024.
	MaxInFlight int
	// MaxAttempts dead-letters a message when a counted attempt fails and the
	// broker has delivered the message this often. Defaults to 0: never. An
	// inbox group has its own limit.
	MaxAttempts int
	// BackoffBase and BackoffMax shape the delay after a failure that names
	// none: base·2^(n−1), at most max, with jitter between 0.5 and 1.5, where n
	// is the delivery count. Default to 1 s and 5 min.
	BackoffBase, BackoffMax time.Duration
	// MaxHold is the longest delay for which a deferred message stays in
	// memory. For longer delays the message is returned to the broker, if the
	// broker supports that. Defaults to 5 s; negative: every deferred message
	// is returned.
	MaxHold time.Duration
	// DrainTimeout is how long Run waits for running calls of the consumer
	// after its context has ended. Then their context ends as well. Defaults to
	// 5 s; negative: no wait.
	DrainTimeout time.Duration
	// ReconnectMax is the longest pause between two attempts to connect; the
	// first is 100 ms. Defaults to 10 s.
	ReconnectMax time.Duration
	// Logger receives reconnects, failed answers and dead letters. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) disables logging.
	Logger *slog.Logger
	// Observe receives metrics. Defaults to no hooks.
	Observe observe.Hooks
}

// Complete returns the config with defaults, or an error that lists every
// invalid field.
func (c ReceiverConfig) Complete() (ReceiverConfig, error) {
	var errs []error
	number := func(n *int, name string, def int) {
		switch {
		case *n == 0:
			*n = def
		case *n < 0:
			errs = append(errs, fmt.Errorf("ReceiverConfig.%s: %d is negative", name, *n))
		}
	}
	positive := func(d *time.Duration, name string, def time.Duration) {
		switch {
		case *d == 0:
			*d = def
		case *d < 0:
			errs = append(errs, fmt.Errorf("ReceiverConfig.%s: %v is negative", name, *d))
		}
	}
	off := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	number(&c.Workers, "Workers", 4)
	number(&c.BatchSize, "BatchSize", 64)
	number(&c.MaxInFlight, "MaxInFlight", 1024)
	number(&c.MaxAttempts, "MaxAttempts", 0)
	positive(&c.BackoffBase, "BackoffBase", time.Second)
	positive(&c.BackoffMax, "BackoffMax", 5*time.Minute)
	off(&c.MaxHold, 5*time.Second)
	off(&c.DrainTimeout, 5*time.Second)
	positive(&c.ReconnectMax, "ReconnectMax", 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}

// Validate returns an error that lists every invalid field. Sources call it in
// their constructors.
func (c ReceiverConfig) Validate() error {
	_, err := c.Complete()
	return err
}

// Headers that a dead letter has in addition to those of the message. They are
// not CloudEvents attributes: the dead letter is still the same event, and can
// be moved back unchanged.
const (
	HeaderDeadReason  = "dead-letter-reason"
	HeaderDeadSource  = "dead-letter-source"
	HeaderDeadAttempt = "dead-letter-attempt"
	HeaderDeadTime    = "dead-letter-time"
)
