package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill/broker"
)

// Incoming is a message that a session has received and not yet answered.
type Incoming struct {
	broker.Message
	// Order is the position of the message among those of its key, such as a
	// sequence number or offset. A message that comes back late goes in front
	// of messages with a higher Order. Zero: behind all messages that have
	// arrived.
	Order uint64
	// Within is the position among messages of equal Order, for brokers where
	// one number is not enough, such as the milliseconds and counters of Redis
	// stream entries. The first number is compared before the second. Two
	// messages of one key that are equal in Order and Within are copies of one
	// message.
	Within [2]uint64
	// OrderBy is the key for an event without an aggregate, such as the key of
	// a Kafka record. Empty: the message has no order.
	OrderBy string
	// Attempt is the broker's delivery count, from 1, and becomes
	// [waybill.Delivery.Attempt]. Zero: the broker does not count.
	Attempt int
	// Tenure belongs to the partition or queue of the message, for brokers that
	// do not count deliveries. Nil: the broker counts deliveries, or no other
	// process can have received the message before.
	Tenure *Tenure
	// Handle belongs to the session, for answering the message.
	Handle any

	held int // attempts made without returning the message in between
}

// attempt returns how often the message was handed out, from 1.
func (in *Incoming) attempt() int { return max(in.Attempt, 1) + in.held }

// Session is one connection of a source to its broker. The broker's package
// implements it and [Receive] drives it. Take runs in one goroutine. The other
// methods may be called from several goroutines, also while Take runs. No
// method retries.
type Session interface {
	// Take passes messages to [Receiver.Put] until ctx ends, and then returns
	// nil. If the session breaks, Take returns the reason.
	Take(ctx context.Context, r *Receiver) error
	// Ack acknowledges messages. It returns after the broker's confirmation, if
	// the broker confirms acknowledgments. Messages whose acknowledgment
	// fails are redelivered.
	Ack(ctx context.Context, batch []*Incoming) error
	// DeadLetter copies a message to the dead-letter destination and returns
	// after the broker's confirmation. It does not acknowledge the message. The
	// reason is for the headers of the dead letter; see [DeadLetter].
	DeadLetter(ctx context.Context, in *Incoming, reason error) error
	// Close closes the connection. The broker redelivers unacknowledged
	// messages. Close is called once, after all other methods.
	Close(ctx context.Context) error
}

// Nakker is implemented by sessions whose broker can take a message back and
// redeliver it later. Without it, deferred messages stay in memory,
// unacknowledged.
type Nakker interface {
	// NakWithDelay returns a message to the broker. The broker redelivers the
	// message after the delay, to this or another consumer, with a higher
	// delivery count.
	NakWithDelay(ctx context.Context, in *Incoming, delay time.Duration) error
}

// AckExtender is implemented by sessions whose broker redelivers messages that
// are not acknowledged within a deadline.
type AckExtender interface {
	// ExtendAck extends the deadline of messages that are still in flight. Some
	// of them may have been answered in the meantime.
	ExtendAck(ctx context.Context, batch []*Incoming) error
	// ExtendInterval is the interval between calls of ExtendAck.
	ExtendInterval() time.Duration
}
