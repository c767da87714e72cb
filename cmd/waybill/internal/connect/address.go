package connect

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// SinkAddress parses a sink's address, for inspection of the server without
// delivery. The URL has all hosts.
func SinkAddress(cfg settings.Sink) (*url.URL, error) {
	u, err := sinkURL(cfg)
	if err != nil || u.Host == "" {
		return u, err
	}
	return withHosts(u, cfg.URL)
}

// Client returns a sink's address without the parameters of this program, as
// the client library takes it.
func Client(u *url.URL) string {
	_, address := take(u, "create", "queues", "existing", "subscriptions", "replicas")
	return address
}

// JetStream is the destination of a NATS sink.
type JetStream struct {
	// Servers is a comma-separated list.
	Servers, Stream string
	// Replicas is the number of servers that store a stream that this program
	// creates; 0 is the default.
	Replicas int
	// Embedded reports that the server runs inside waybill serve.
	Embedded bool
}

// JetStreamOf returns the destination of a NATS sink.
func JetStreamOf(cfg settings.Sink) (JetStream, error) {
	u, err := sinkURL(cfg)
	if err != nil {
		return JetStream{}, err
	}
	if u.Opaque != "" {
		at := u.Query().Get("listen")
		if at == "" {
			at = defaultListen
		}
		servers := &url.URL{Scheme: "nats", Host: at}
		if own, err := natsembed.Password(embeddedDir(u)); err == nil { // no password if the server never ran here
			servers.User = own
		}
		return JetStream{Servers: servers.String(), Stream: defaultStream, Embedded: true}, nil
	}
	stream := strings.Trim(u.Path, "/")
	if stream == "" {
		stream = defaultStream
	}
	replicas, err := replicasOf(u)
	if err != nil {
		return JetStream{}, err
	}
	servers, err := eachHost(u, cfg.URL)
	return JetStream{Servers: servers, Stream: stream, Replicas: replicas}, err
}

// embeddedDir returns the folder of an embedded server.
func embeddedDir(u *url.URL) string {
	if dir := u.Query().Get("dir"); dir != "" {
		return dir
	}
	return defaultDir
}

// SinkName returns the name under which an outbox records a sink: its kind and
// address, without user name, password and parameters. The path of a webhook
// may be a secret and is replaced by a hash. An embedded broker is identified
// by its folder.
func SinkName(cfg settings.Sink) (string, error) {
	u, err := sinkURL(cfg)
	if err != nil {
		return "", err
	}
	switch {
	case u.Scheme == "log":
		return "log:", nil
	case u.Opaque != "":
		dir := embeddedDir(u)
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		return u.Scheme + ":" + u.Opaque + " " + dir, nil
	}
	_, hosts, err := settings.ParseURL(cfg.URL.Reveal())
	if err != nil {
		return "", badURL("sink.url", "separate the hosts with commas", "malformed")
	}
	all := strings.Split(hosts, ",")
	slices.Sort(all)
	path := strings.Trim(u.Path, "/")
	if u.Scheme == "https" || u.Scheme == "http" {
		u, _ = splitTLS(u)
	}
	if (u.Scheme == "https" || u.Scheme == "http") && path+u.RawQuery != "" {
		hash := sha256.Sum256([]byte(path + "?" + u.RawQuery))
		path = hex.EncodeToString(hash[:8])
	}
	if path == "" && (u.Scheme == "nats" || u.Scheme == "tls") {
		path = defaultStream
	}
	return u.Scheme + "://" + strings.Join(slices.Compact(all), ",") + "/" + path, nil
}
