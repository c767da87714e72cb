package rabbitbroker

import (
	"errors"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

var (
	errNack    = errors.New("message rejected by the broker (nack)")
	errBlocked = errors.New("connection blocked by the broker")
	errSilent  = errors.New("no answer from the broker")
	errClosed  = errors.New("broker closed")
)

// returnedError reports a message that reached no queue.
type returnedError struct {
	code uint16
	text string
}

func (e *returnedError) Error() string { return "returned by the broker: " + e.text }

// Failures returns the failure table of RabbitMQ, as the package comment and
// docs/brokers.md show it.
func Failures() driver.Failures {
	return driver.Failures{
		{
			Name: "returned: no queue is bound (312 NO_ROUTE)", Class: waybill.ClassUnavailable, Scope: "topic",
			Why:   "a queue has yet to be bound; the event must not be lost",
			Match: func(err error) bool { var e *returnedError; return errors.As(err, &e) },
		},
		{
			Name: "nack", Class: waybill.ClassUnavailable, Scope: "topic", Why: "a queue is full, or the broker could not store the message",
			Match: driver.IsAny(errNack),
		},
		{
			Name:  "404 NOT_FOUND, 403 ACCESS_REFUSED, 405 RESOURCE_LOCKED, 406 PRECONDITION_FAILED",
			Class: waybill.ClassUnavailable, Scope: "topic",
			Why: "the exchange is missing, differs from its declaration, or denies access to the account",
			Match: func(err error) bool {
				return exception(err, amqp.NotFound, amqp.AccessRefused, amqp.ResourceLocked) ||
					exception(err, amqp.PreconditionFailed) && !tooLarge(err)
			},
		},
		{
			Name: "connection.blocked", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the broker is short of memory or disk",
			Match: driver.IsAny(errBlocked),
		},
		{
			Name: "311 CONTENT_TOO_LARGE, frame larger than permitted", Class: waybill.ClassPermanent, Why: "larger than max_message_size", Match: tooLarge,
		},
		{
			Name: "any other exception", Class: waybill.ClassUnavailable, Scope: "broker",
			Why:   "the connection or channel is closed; the event was not rejected",
			Match: func(err error) bool { var e *amqp.Error; return errors.As(err, &e) },
		},
		driver.Unreachable(driver.IsAny(errSilent, errClosed)),
	}
}

// tooLarge reports whether the broker rejected a message for its size. RabbitMQ
// reports that with 406 and a text.
func tooLarge(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == amqp.ContentTooLarge || e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "larger than")
}

// exception reports whether the broker closed a channel or connection with one
// of the codes.
func exception(err error, codes ...int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}
