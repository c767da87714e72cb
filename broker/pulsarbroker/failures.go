package pulsarbroker

import (
	"errors"
	"slices"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

var (
	errSilent     = errors.New("no answer from the broker")
	errClosed     = errors.New("broker closed")
	errUnanswered = errors.New("no receipt")
	errUnverified = errors.New("receipt without a message id (-1:-1)")
)

// Failures returns the failure table of Pulsar, as the package comment and
// docs/brokers.md show it.
func Failures() driver.Failures {
	matches := func(codes ...string) func(error) bool {
		return func(err error) bool { return reports(err, codes...) }
	}
	return driver.Failures{
		{
			Name: "larger than MaxMessageSize", Class: waybill.ClassPermanent, Why: "its size does not change", Match: tooLarge,
		},
		{
			Name: "InvalidTopicName", Class: waybill.ClassPermanent, Why: "it comes from the event", Match: matches("InvalidTopicName"),
		},
		{
			Name: "receipt without a message id (-1:-1)", Class: waybill.ClassDefer,
			Why:   "the broker treats it as a duplicate of a message that it may never have stored",
			Match: driver.IsAny(errUnverified),
		},
		{
			Name: "TopicNotFound", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the topic has yet to be created", Match: matches("TopicNotFound"),
		},
		{
			Name: "TopicTerminated", Class: waybill.ClassUnavailable, Scope: "topic", Why: "an operator has terminated it and must decide where its events go",
			Match: matches("TopicTerminated", "TopicTerminatedError"),
		},
		{
			Name: "ProducerBlockedQuotaExceeded", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the backlog is full: the consumers do not keep up",
			Match: matches("ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException"),
		},
		{
			Name: "AuthorizationError, NotAllowedError", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the account has no access, or a policy forbids it",
			Match: matches("AuthorizationError", "NotAllowedError"),
		},
		{
			Name: "IncompatibleSchema", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the topic requires a schema",
			Match: matches("IncompatibleSchema", "SchemaFailure"),
		},
		{
			Name: "ProducerClosed, ProducerFenced, ProducerBusy", Class: waybill.ClassUnavailable, Scope: "topic", Why: "a new producer is created",
			Match: matches("ProducerClosed", "ProducerFenced", "ProducerBusy", "AlreadyClosedError"),
		},
		{
			Name: "ProducerQueueIsFull, ClientMemoryBufferIsFull", Class: waybill.ClassDefer, Why: "other messages are in flight",
			Match: matches("ProducerQueueIsFull", "ClientMemoryBufferIsFull"),
		},
		{
			Name: "any other error of the server", Class: waybill.ClassUnavailable, Scope: "broker", Why: "not ready, too many requests, no metadata, no storage: temporary",
			Match: func(err error) bool { _, ok := serverError(err); return ok },
		},
		driver.Unreachable(driver.IsAny(errSilent, errClosed), matches("TimeoutError", "ConnectError", "NotConnectedError"), disconnected),
	}
}

func tooLarge(err error) bool {
	return driver.IsAny(pulsar.ErrMessageTooLarge, pulsar.ErrMetaTooLarge)(err) ||
		err != nil && strings.Contains(err.Error(), "exceeds MaxMessageSize")
}

// disconnected matches the texts of the client's own errors, which have no
// type.
func disconnected(err error) bool {
	return slices.Contains([]string{"connection closed", "connection error", "request timed out", "unable register listener when con closed"}, root(err).Error())
}

// results maps the client's result codes to the server's names.
var results = map[pulsar.Result]string{
	pulsar.TimeoutError: "TimeoutError", pulsar.ConnectError: "ConnectError", pulsar.NotConnectedError: "NotConnectedError",
	pulsar.AuthenticationError: "AuthenticationError", pulsar.AuthorizationError: "AuthorizationError",
	pulsar.AlreadyClosedError: "AlreadyClosedError", pulsar.ProducerClosed: "ProducerClosed", pulsar.ProducerFenced: "ProducerFenced",
	pulsar.InvalidTopicName: "InvalidTopicName", pulsar.TopicNotFound: "TopicNotFound", pulsar.TopicTerminated: "TopicTerminated",
	pulsar.ProducerBlockedQuotaExceededError:     "ProducerBlockedQuotaExceededError",
	pulsar.ProducerBlockedQuotaExceededException: "ProducerBlockedQuotaExceededException",
	pulsar.ProducerQueueIsFull:                   "ProducerQueueIsFull", pulsar.ClientMemoryBufferIsFull: "ClientMemoryBufferIsFull",
	pulsar.SchemaFailure: "SchemaFailure", pulsar.ConsumerBusy: "ConsumerBusy",
}

// reports reports whether an error has one of the codes, from the client or the
// server.
func reports(err error, codes ...string) bool {
	var own *pulsar.Error
	if errors.As(err, &own) && slices.Contains(codes, results[own.Result()]) {
		return true
	}
	code, ok := serverError(err)
	return ok && slices.Contains(codes, code)
}

// serverErrors lists the error codes of Pulsar's protocol.
var serverErrors = []string{
	"UnknownError", "MetadataError", "PersistenceError", "AuthenticationError", "AuthorizationError", "ConsumerBusy", "ServiceNotReady",
	"ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ChecksumError", "UnsupportedVersionError", "TopicNotFound",
	"SubscriptionNotFound", "ConsumerNotFound", "TooManyRequests", "TopicTerminatedError", "ProducerBusy", "InvalidTopicName", "IncompatibleSchema",
	"ConsumerAssignError", "NotAllowedError", "ProducerFenced",
}

// serverError returns the code of the server's answer. The client passes it on
// as a text: "server error: TopicNotFound: why", or only the code.
func serverError(err error) (string, bool) {
	if err == nil {
		return "", false
	}
	text := root(err).Error()
	text = strings.TrimPrefix(text, "server error: ")
	code, _, _ := strings.Cut(text, ":")
	return code, slices.Contains(serverErrors, code)
}

// root returns the innermost error.
func root(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
