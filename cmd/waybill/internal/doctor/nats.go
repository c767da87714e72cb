package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// natsProbe is a connection to a JetStream server; stream is nil if the stream
// does not exist.
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
		{Name: "jetstream stream", For: natsSink, Looks: "the stream", Wants: "an existing stream", run: onNATS(streamThere)},
		{Name: "jetstream subjects", For: natsSink, Looks: "the subjects of events in the tables", Wants: "subjects of the stream", run: streamSubjects},
		{Name: "jetstream storage", For: natsSink, Looks: "storage and replicas of the stream", Wants: "file; in a cluster, 3 replicas", run: onNATS(streamStorage)},
		{Name: "jetstream limits", For: natsSink, Looks: "limits of age, size and number of messages", Wants: "no limit that drops unread messages", run: onNATS(streamLimits)},
		{Name: "jetstream sync", For: natsSink, Looks: "`sync_interval` of the server", Wants: "always; otherwise the server confirms messages before they are on disk", run: onNATS(streamSync)},
	}
}

func onNATS(check func(n *natsProbe) Finding) func(context.Context, *patient) (Finding, error) {
	return func(_ context.Context, p *patient) (Finding, error) {
		n, ok := p.sink.(*natsProbe)
		if !ok {
			return Finding{}, errors.New("no connection")
		}
		return check(n), nil
	}
}

func streamThere(n *natsProbe) Finding {
	if n.stream == nil {
		return fail("nats stream add "+n.at.Stream+", or add ?create=true to sink.url", "stream %s does not exist: no event can be published", n.at.Stream)
	}
	return good("stream %s has the subjects %s", n.at.Stream, strings.Join(n.stream.Config.Subjects, ", "))
}

// streamSubjects finds an event whose subject is in no stream, or in another
// one.
func streamSubjects(ctx context.Context, p *patient) (Finding, error) {
	n, ok := p.sink.(*natsProbe)
	switch {
	case !ok:
		return Finding{}, errors.New("no connection")
	case n.stream == nil:
		return unseen("the stream does not exist"), nil
	}
	subjects, err := p.topics(ctx, natsbroker.Names())
	if err != nil {
		return Finding{}, err
	}
	if len(subjects) == 0 {
		return noTopic(), nil
	}
	js, err := jetstream.New(n.conn)
	if err != nil {
		return Finding{}, err
	}
	edit := "nats stream edit " + n.at.Stream + " --subjects "
	for _, subject := range subjects {
		switch in, err := js.StreamNameBySubject(ctx, subject); {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			all := strings.Join(append(slices.Clone(n.stream.Config.Subjects), subject), ",")
			return fail(edit+all, "no stream has the subject %s: its events wait", subject), nil
		case err != nil:
			return Finding{}, err
		case in != n.at.Stream:
			return warn("remove the subject from stream "+in, "the subject %s is one of stream %s: its events go there", subject, in), nil
		}
	}
	return good("the stream has all %d subjects of events in the tables", len(subjects)), nil
}

func streamStorage(n *natsProbe) Finding {
	switch {
	case n.stream == nil:
		return unseen("the stream does not exist")
	case n.stream.Config.Storage != jetstream.FileStorage:
		return fail(fmt.Sprintf("nats stream rm %s; nats stream add %s --storage file", n.at.Stream, n.at.Stream), "the stream is stored in memory: a restart loses all events")
	case n.stream.Cluster != nil && n.stream.Cluster.Name != "" && n.stream.Config.Replicas < 3:
		return warn("nats stream edit "+n.at.Stream+" --replicas 3", "the stream has %d replicas in a cluster: the loss of a server loses events", n.stream.Config.Replicas)
	}
	return good("on disk, %d replicas", n.stream.Config.Replicas)
}

func streamLimits(n *natsProbe) Finding {
	if n.stream == nil {
		return unseen("the stream does not exist")
	}
	cfg := n.stream.Config
	edit := "nats stream edit " + n.at.Stream
	switch {
	case cfg.MaxMsgsPerSubject > 0 && cfg.Discard == jetstream.DiscardOld:
		return fail(edit+" --max-msgs-per-subject=-1", "only %d messages of each subject are kept, read or not", cfg.MaxMsgsPerSubject)
	case cfg.Discard == jetstream.DiscardOld && (cfg.MaxMsgs > 0 || cfg.MaxBytes > 0):
		return fail(edit+" --discard new", "a full stream drops its oldest messages, read or not; with --discard new it refuses new messages, and the relay waits")
	case cfg.MaxAge > 0:
		return warn(edit+" --max-age=-1, or ensure that every consumer is faster", "messages are dropped after %s, read or not", settings.FormatDuration(cfg.MaxAge))
	}
	return good("no limit drops messages")
}

func streamSync(n *natsProbe) Finding {
	if n.at.Embedded {
		return good("the embedded server always syncs")
	}
	return Finding{
		Status: NotChecked, Text: "not visible to clients", Type: "in the server's configuration file: jetstream { sync_interval: always }",
	}
}
