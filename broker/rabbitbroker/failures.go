package rabbitbroker

import (
	"errors"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

var (
	errNack    = errors.New("the broker did not take the message (nack)")
	errBlocked = errors.New("the broker has blocked the connection")
	errSilent  = errors.New("the broker did not answer")
	errClosed  = errors.New("the broker was closed")
)

// returnedError says that no queue got a message.
type returnedError struct {
	code uint16
	text string
}

func (e *returnedError) Error() string { return "returned by the broker: " + e.text }

// Failures is what RabbitMQ's errors mean, as the package comment and docs/brokers.md show it.
func Failures() broker.Failures {
	return broker.Failures{
		{
			Name: "returned: no queue is bound (312 NO_ROUTE)", Class: waybill.ClassUnavailable, Scope: "topic",
			Why:   "somebody has yet to bind one; losing it is not the answer",
			Match: func(err error) bool { var e *returnedError; return errors.As(err, &e) },
		},
		{
			Name: "nack", Class: waybill.ClassUnavailable, Scope: "topic", Why: "a queue is full, or the broker could not take it",
			Match: func(err error) bool { return errors.Is(err, errNack) },
		},
		{
			Name:  "404 NOT_FOUND, 403 ACCESS_REFUSED, 405 RESOURCE_LOCKED, 406 PRECONDITION_FAILED",
			Class: waybill.ClassUnavailable, Scope: "topic",
			Why: "the exchange is not there, or not as it should be, or not for this account",
			Match: func(err error) bool {
				return exception(err, amqp.NotFound, amqp.AccessRefused, amqp.ResourceLocked) ||
					exception(err, amqp.PreconditionFailed) && !tooLarge(err)
			},
		},
		{
			Name: "connection.blocked", Class: waybill.ClassUnavailable, Scope: "broker", Why: "short of memory or disk",
			Match: func(err error) bool { return errors.Is(err, errBlocked) },
		},
		{
			Name: "311 CONTENT_TOO_LARGE, frame larger than permitted", Class: waybill.ClassPermanent, Why: "larger than max_message_size", Match: tooLarge,
		},
		{
			Name: "any other exception", Class: waybill.ClassUnavailable, Scope: "broker",
			Why:   "the connection or channel is closed; nobody has refused the event",
			Match: func(err error) bool { var e *amqp.Error; return errors.As(err, &e) },
		},
		unreachable(),
	}
}

// tooLarge reports whether the broker refused a message for its size. RabbitMQ says so with 406 and a text.
func tooLarge(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == amqp.ContentTooLarge || e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "larger than")
}

func unreachable() broker.Failure {
	row := broker.Unreachable()
	usual := row.Match
	row.Match = func(err error) bool { return usual(err) || errors.Is(err, errSilent) || errors.Is(err, errClosed) }
	return row
}

// exception reports whether the broker closed a channel or connection with one of the codes.
func exception(err error, codes ...int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}
