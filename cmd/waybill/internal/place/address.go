package place

import (
	"net/url"
	"strings"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// SinkAddress reads a sink's address, for who wants to look at the server behind it and not to deliver. The URL has all hosts.
func SinkAddress(cfg settings.Sink) (*url.URL, error) {
	u, err := sinkURL(cfg)
	if err != nil || u.Host == "" {
		return u, err
	}
	return withHosts(u, cfg.URL)
}

// Client returns a sink's address without the parameters that are this program's own: as its client takes it.
func Client(u *url.URL) string {
	_, address := take(u, "create", "declare", "queues", "existing", "subscriptions")
	return address
}

// JetStream is where a NATS sink publishes to.
type JetStream struct {
	// Servers has commas between them.
	Servers, Stream string
	// Embedded says that the server runs inside waybill serve.
	Embedded bool
}

// JetStreamOf returns where a NATS sink publishes to.
func JetStreamOf(cfg settings.Sink) (JetStream, error) {
	u, err := sinkURL(cfg)
	if err != nil {
		return JetStream{}, err
	}
	if u.Opaque != "" {
		at := u.Query().Get("listen")
		if at == "" {
			at = usualListen
		}
		return JetStream{Servers: "nats://" + at, Stream: usualStream, Embedded: true}, nil
	}
	stream := strings.Trim(u.Path, "/")
	if stream == "" {
		stream = usualStream
	}
	servers, err := eachHost(u, cfg.URL)
	return JetStream{Servers: servers, Stream: stream}, err
}
