package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// Consumer is what a source feeds: an inbox group or bus, a handler mux, or any other sink.
//
// Deliver returns one result per delivery, in the same order. It is called from several goroutines. Two messages of one aggregate are never in the
// same call, nor in two calls at a time. The context lives on when the source's has ended, until [ReceiverConfig.DrainTimeout]
// is over; a consumer that ignores its end keeps the source from returning.
type Consumer interface {
	Deliver(ctx context.Context, batch []waybill.Delivery) []error
}

// Source is a place that messages come from.
type Source interface {
	// Name says which source it is, in logs and metrics.
	Name() string
	// Run feeds the consumer until ctx ends. Then it takes no more messages, finishes those in hand, gives back the rest and returns nil. It
	// connects again by itself; it returns an error only for what no other attempt would change, such as a stream that does not exist.
	Run(ctx context.Context, c Consumer) error
}

// Incoming is a message that a session has taken from its broker and not answered yet.
type Incoming struct {
	Message
	// Order is its place among the messages of its key, such as a sequence number or offset: one that comes back late is put in front of
	// later ones. Zero: behind all that have arrived.
	Order uint64
	// Within is its place among those of the same Order, the first number before the second, where
	// one number is too few: an entry of a Redis stream has a millisecond and a count in it. Two
	// messages of one key that are equal in Order and Within are two copies of one.
	Within [2]uint64
	// OrderBy is the key for an event that names no aggregate, such as a Kafka record's. Empty: it has no order.
	OrderBy string
	// Attempt is the broker's delivery count, from 1; 0 if it has none. It becomes the delivery's.
	Attempt int
	// Tenure, of a broker that counts no deliveries, is that of the place where the message comes
	// from. Nil: the broker counts them, or no process can have had the message before.
	Tenure *Tenure
	// Handle is the session's own, for answering.
	Handle any

	held int // attempts that were made without giving it back in between
}

// attempt returns how often the message was handed out, from 1.
func (in *Incoming) attempt() int { return max(in.Attempt, 1) + in.held }

// Session is one connection of a source to its broker, written by the broker's package and driven by [Receive]. Take runs in one goroutine, and
// the others may be called from several, also while Take runs. None of them retries.
type Session interface {
	// Take hands messages to [Receiver.Put] until ctx ends (then it returns nil) or the session can go on no longer (then it says why).
	Take(ctx context.Context, r *Receiver) error
	// Ack tells the broker that the messages are done. It returns when the broker has confirmed that, where it does. What it
	// fails to tell comes again.
	Ack(ctx context.Context, batch []*Incoming) error
	// DeadLettered puts a message into the dead-letter destination and returns when the broker has confirmed that. It does not acknowledge it. The
	// reason is for the headers of the dead letter; see [Codec.DeadLetter].
	DeadLetter(ctx context.Context, in *Incoming, reason error) error
	// Close ends the connection; the broker hands out again what was not acknowledged. It is called last, once.
	Close(ctx context.Context) error
}

// Nakker is a session whose broker can take a message back and deliver it again later. Others keep the messages that are
// put off in memory, unacknowledged.
type Nakker interface {
	// PutOff gives a message back. The broker delivers it again, here or elsewhere, with a higher count, after the delay.
	NakWithDelay(ctx context.Context, in *Incoming, delay time.Duration) error
}

// AckExtender is a session whose broker delivers messages again when it hears nothing for a while.
type AckExtender interface {
	// Keep says that the messages are still being worked on. Some of them may have been answered meanwhile.
	ExtendAck(ctx context.Context, batch []*Incoming) error
	// ExtendInterval is how often it has to say so.
	ExtendInterval() time.Duration
}

// ReceiverConfig holds what may be tuned in any source; its zero value is ready. A field that is zero has its default.
type ReceiverConfig struct {
	// Workers is how many calls of the consumer run at a time. Defaults to 4.
	Workers int
	// BatchSize is how many messages one call of the consumer holds at most. Defaults to 64.
	BatchSize int
	// MaxInFlight is how many messages may be taken and not yet answered. Defaults to 1024.
	MaxInFlight int
	// MaxAttempts sets a message aside when an attempt fails that counts and the broker has delivered it this often. Defaults to 0: never. An inbox
	// group counts for itself.
	MaxAttempts int
	// BackoffBase and BackoffMax shape the delay after a failure that names none: base·2^(n−1), at most max, with jitter between 0.5 and
	// 1.5. n is the delivery count. Default to 1 s and 5 min.
	BackoffBase, BackoffMax time.Duration
	// MaxHold is the longest delay for which a message stays here; for longer ones it is given back to the broker, where it can be.
	// Defaults to 5 s; negative: all are given back.
	MaxHold time.Duration
	// DrainTimeout is how long Run waits, when its context has ended, for calls of the consumer under way; then it ends their context.
	// Defaults to 5 s; negative: not at all.
	DrainTimeout time.Duration
	// ReconnectMax is the longest pause between two attempts to connect; they begin with 100 ms. Defaults to 10 s.
	ReconnectMax time.Duration
	// Logger gets what an operator should know. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
	// Observe plugs in metrics.
	Observe observe.Hooks
}

// complete returns the config with its defaults in place, or every field that is wrong.
func (c ReceiverConfig) complete() (ReceiverConfig, error) {
	var errs []error
	number := func(n *int, name string, usual int) {
		switch {
		case *n == 0:
			*n = usual
		case *n < 0:
			errs = append(errs, fmt.Errorf("field %s: %d is negative", name, *n))
		}
	}
	positive := func(d *time.Duration, name string, usual time.Duration) {
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
	number(&c.Workers, "Workers", 4)
	number(&c.BatchSize, "BatchSize", 64)
	number(&c.MaxInFlight, "MaxInFlight", 1024)
	number(&c.MaxAttempts, "MaxAttempts", 0)
	positive(&c.BackoffBase, "BackoffBase", time.Second)
	positive(&c.BackoffMax, "BackoffMax", 5*time.Minute)
	positive(&c.ReconnectMax, "ReconnectMax", 10*time.Second)
	off(&c.MaxHold, 5*time.Second)
	off(&c.DrainTimeout, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("broker: %w", err)
	}
	return c, nil
}

// Validate reports every field that is wrong, so that a source can say so when it is made.
func (c ReceiverConfig) Validate() error {
	_, err := c.complete()
	return err
}

// The headers of a dead letter, beside those of the message. They are not attributes: the dead letter is still the same event, and can be
// moved back as it is.
const (
	HeaderDeadReason  = "dead-letter-reason"
	HeaderDeadSource  = "dead-letter-source"
	HeaderDeadAttempt = "dead-letter-attempt"
	HeaderDeadTime    = "dead-letter-time"
)

// maxReason is how many bytes of a reason a dead letter has.
const maxReason = 512

// DeadLetter returns the message for the dead-letter destination: the same one, with the reason, the source, the delivery count and the time in its
// headers. Its publish id is another one: the broker may have seen the first in the same stream.
func (c *Codec) DeadLetter(source string, in *Incoming, reason error) Message {
	m := in.Message
	headers := make([]Header, 0, len(m.Headers)+4)
	for _, h := range m.Headers {
		switch h.Name {
		case HeaderDeadReason, HeaderDeadSource, HeaderDeadAttempt, HeaderDeadTime: // it was moved back, and is dead again
		default:
			headers = append(headers, h)
		}
	}
	text := ""
	if reason != nil {
		text = printable(reason.Error(), maxReason)
	}
	m.Headers = append(headers,
		Header{HeaderDeadReason, c.rules.value(text)}, Header{HeaderDeadSource, c.rules.value(printable(source, maxReason))},
		Header{HeaderDeadAttempt, strconv.Itoa(in.attempt())}, Header{HeaderDeadTime, time.Now().UTC().Format(time.RFC3339)})
	if m.PublishID != "" {
		m.PublishID += "-dead"
	}
	return m
}

// printable returns s as valid UTF-8 of at most limit bytes without control characters.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
