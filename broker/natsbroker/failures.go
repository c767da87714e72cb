package natsbroker

import (
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

// Error codes of the server that the client does not name.
const (
	codeMemoryFull    jetstream.ErrorCode = 10028
	codeStorageFull   jetstream.ErrorCode = 10047
	codeTooLarge      jetstream.ErrorCode = 10054
	codeOtherStream   jetstream.ErrorCode = 10060
	codeHeadersLarge  jetstream.ErrorCode = 10097
	codeSealed        jetstream.ErrorCode = 10109
	codeStreamOffline jetstream.ErrorCode = 10118
)

// Failures returns the failure table of NATS, as docs/brokers.md shows it.
func Failures() driver.Failures {
	return driver.Failures{
		{
			Name: "message or headers larger than the server or the stream permits", Class: waybill.ClassPermanent, Why: "its size does not change",
			Match: either(driver.IsAny(nats.ErrMaxPayload), code(codeTooLarge, codeHeadersLarge)),
		},
		{Name: "a subject that is not valid", Class: waybill.ClassPermanent, Why: "it comes from the event", Match: driver.IsAny(nats.ErrBadSubject, jetstream.ErrInvalidSubject)},
		{
			Name: "no stream listens to the subject", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the stream has yet to be created",
			Match: driver.IsAny(nats.ErrNoResponders, jetstream.ErrNoStreamResponse, jetstream.ErrStreamNotFound),
		},
		{
			Name: "another stream listens to the subject", Class: waybill.ClassUnavailable, Scope: "topic", Why: "the configuration is at fault, not the event",
			Match: code(codeOtherStream),
		},
		{
			Name: "stream full, sealed or offline, or no storage left", Class: waybill.ClassUnavailable, Scope: "topic", Why: "an operator must make room",
			Match: code(codeStorageFull, codeMemoryFull, codeSealed, codeStreamOffline),
		},
		{
			Name: "any other error with code 503", Class: waybill.ClassUnavailable, Scope: "broker", Why: "no leader, no quorum, no JetStream, no room: temporary, according to the server",
			Match: unavailable,
		},
		{
			Name: "too many messages without a PubAck", Class: waybill.ClassDefer, Why: "other messages are in flight",
			Match: driver.IsAny(jetstream.ErrTooManyStalledMsgs),
		},
		{
			Name: "no PubAck in time", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the broker may or may not have the message",
			Match: driver.IsAny(jetstream.ErrAsyncPublishTimeout, nats.ErrTimeout),
		},
		{
			Name: "disconnected, or closed", Class: waybill.ClassUnavailable, Scope: "broker", Why: "the client reconnects by itself",
			Match: driver.IsAny(nats.ErrDisconnected, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrNoServers,
				nats.ErrStaleConnection, nats.ErrConnectionDraining, jetstream.ErrConnectionClosed, jetstream.ErrJetStreamPublisherClosed),
		},
		driver.Unreachable(),
	}
}

func either(a, b func(error) bool) func(error) bool {
	return func(err error) bool { return a(err) || b(err) }
}

func code(codes ...jetstream.ErrorCode) func(error) bool {
	return func(err error) bool {
		api := apiError(err)
		return api != nil && slices.Contains(codes, api.ErrorCode)
	}
}

func unavailable(err error) bool {
	api := apiError(err)
	return api != nil && api.Code == 503
}

// apiError returns the server's answer in err, or nil.
func apiError(err error) *jetstream.APIError {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api
	}
	var js jetstream.JetStreamError
	if errors.As(err, &js) {
		return js.APIError()
	}
	return nil
}
