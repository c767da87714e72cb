package natsbroker_test

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/natsbroker"
)

// The documentation shows the failure table, and each row matches the error of
// the client or the server.
func TestFailures(t *testing.T) {
	api := func(code int, number jetstream.ErrorCode) error {
		return fmt.Errorf("publishing: %w", &jetstream.APIError{Code: code, ErrorCode: number, Description: "x"})
	}
	drivertest.Failures(t, natsbroker.Failures(), map[string]error{
		"message or headers larger than the server or the stream permits": api(400, 10054),
		"a subject that is not valid":                                     fmt.Errorf("x: %w", nats.ErrBadSubject),
		"no stream listens to the subject":                                jetstream.ErrNoStreamResponse,
		"another stream listens to the subject":                           api(400, 10060),
		"stream full, sealed or offline, or no storage left":              api(500, 10047),
		"any other error with code 503":                                   api(503, 10077),
		"too many messages without a PubAck":                              jetstream.ErrTooManyStalledMsgs,
		"no PubAck in time":                                               jetstream.ErrAsyncPublishTimeout,
		"disconnected, or closed":                                         nats.ErrReconnectBufExceeded,
		"connection lost, refused or silent":                              &net.OpError{Op: "read", Err: errors.New("x")},
	}, "../../docs/brokers.md")
}
