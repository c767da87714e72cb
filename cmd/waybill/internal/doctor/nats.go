package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// natsProbe is a JetStream server; stream is nil if there is none of the name.
type natsProbe struct {
	conn   *nats.Conn
	stream *jetstream.StreamInfo
	at     connect.JetStream
}

func (n *natsProbe) close() { n.conn.Close() }

func dialNATS(ctx context.Context, s settings.Sink) (probe, error) {
	at, err := connect.JetStreamOf(s)
	if err != nil {
		return nil, err
	}
	servers, secure, err := natsbroker.Address(at.Servers, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(servers, append(secure, nats.Name("waybill doctor"), nats.Timeout(5*time.Second), nats.MaxReconnects(0))...)
	switch {
	case err != nil && at.Embedded:
		return nil, errLater
	case err != nil:
		return nil, err
	}
	n := &natsProbe{conn: conn, at: at}
	if n.stream, err = streamInfo(ctx, conn, at.Stream); err != nil {
		conn.Close()
		return nil, err
	}
	return n, nil
}

func streamInfo(ctx context.Context, conn *nats.Conn, name string) (*jetstream.StreamInfo, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

func natsChecks() []Check {
	return []Check{
		{Name: "jetstream stream", For: natsSink, Looks: "the stream", Wants: "one that is there", run: onNATS(streamThere)},
		{Name: "jetstream storage", For: natsSink, Looks: "its storage and replicas", Wants: "file; in a cluster, 3 replicas", run: onNATS(streamStorage)},
		{Name: "jetstream limits", For: natsSink, Looks: "its age, size and number of messages", Wants: "no limit that drops what nobody has read", run: onNATS(streamLimits)},
		{Name: "jetstream sync", For: natsSink, Looks: "`sync_interval` of the server", Wants: "always: otherwise it confirms what it has not written to disk", run: onNATS(streamSync)},
	}
}

func onNATS(check func(n *natsProbe) Finding) func(context.Context, *patient) (Finding, error) {
	return func(_ context.Context, p *patient) (Finding, error) {
		n, ok := p.sink.(*natsProbe)
		if !ok {
			return Finding{}, errors.New("there is no connection")
		}
		return check(n), nil
	}
}

func streamThere(n *natsProbe) Finding {
	if n.stream == nil {
		return fail("nats stream add "+n.at.Stream+", or add ?create=true to sink.url", "there is no stream %s: serve will refuse to start", n.at.Stream)
	}
	return good("the stream %s takes %s", n.at.Stream, strings.Join(n.stream.Config.Subjects, ", "))
}

func streamStorage(n *natsProbe) Finding {
	switch {
	case n.stream == nil:
		return unseen("there is no stream")
	case n.stream.Config.Storage != jetstream.FileStorage:
		return fail(fmt.Sprintf("nats stream rm %s; nats stream add %s --storage file", n.at.Stream, n.at.Stream), "the stream is in memory: a restart loses every event")
	case n.stream.Cluster != nil && n.stream.Cluster.Name != "" && n.stream.Config.Replicas < 3:
		return warn("nats stream edit "+n.at.Stream+" --replicas 3", "the stream has %d replicas, in a cluster: a server that is lost takes events with it", n.stream.Config.Replicas)
	}
	return good("on disk, %d replicas", n.stream.Config.Replicas)
}

func streamLimits(n *natsProbe) Finding {
	if n.stream == nil {
		return unseen("there is no stream")
	}
	cfg := n.stream.Config
	edit := "nats stream edit " + n.at.Stream
	switch {
	case cfg.MaxMsgsPerSubject > 0 && cfg.Discard == jetstream.DiscardOld:
		return fail(edit+" --max-msgs-per-subject=-1", "of each subject only %d messages are kept, whether they were read or not", cfg.MaxMsgsPerSubject)
	case cfg.Discard == jetstream.DiscardOld && (cfg.MaxMsgs > 0 || cfg.MaxBytes > 0):
		return fail(edit+" --discard new", "a full stream drops its oldest messages, whether they were read or not; --discard new would refuse new ones, and the relay waits")
	case cfg.MaxAge > 0:
		return warn(edit+" --max-age=-1, or have every consumer be quicker", "messages are dropped after %s, whether they were read or not", settings.FormatDuration(cfg.MaxAge))
	}
	return good("no limit drops messages")
}

func streamSync(n *natsProbe) Finding {
	if n.at.Embedded {
		return good("the server inside waybill serve syncs always")
	}
	return Finding{
		Status: NotChecked, Text: "no client can see it", Type: "in the server's file: jetstream { sync_interval: always }",
	}
}
