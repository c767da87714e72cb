package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/store"
)

// probe is a connection to the server of a sink, for inspection only.
type probe interface{ close() }

// The kinds of sinks.
const (
	natsSink    = "nats"
	kafkaSink   = "kafka"
	amqpSink    = "amqp"
	redisSink   = "redis"
	pulsarSink  = "pulsar"
	webhookSink = "https"
	logSink     = "log"
)

// sinkKind returns the kind of a sink: secure and plain schemes are of one
// kind.
func sinkKind(s settings.Sink) string {
	scheme, _, _ := strings.Cut(s.URL.Reveal(), ":")
	switch scheme {
	case "tls":
		return natsSink
	case "amqps":
		return amqpSink
	case "rediss":
		return redisSink
	case "pulsar+ssl":
		return pulsarSink
	case "http":
		return webhookSink
	}
	return scheme
}

// dial connects to the server of a sink.
func dial(ctx context.Context, s settings.Sink) (probe, error) {
	u, err := connect.SinkAddress(s)
	if err != nil {
		return nil, err
	}
	var p probe
	switch sinkKind(s) {
	case natsSink:
		p, err = dialNATS(ctx, s)
	case kafkaSink:
		p, err = dialKafka(ctx, u)
	case amqpSink:
		p, err = dialAMQP(ctx, u)
	case redisSink:
		p, err = dialRedis(ctx, u)
	case pulsarSink:
		p, err = dialPulsar(ctx, u)
	default: // a webhook cannot be inspected without an event, and log: has no server
		return nothing{}, nil
	}
	if err == nil || hint.Of(err) != "" {
		return p, err
	}
	advice := "check that the server is running, and the user name and password; waybill config shows the origin of sink.url"
	return nil, hint.New(cmp.Or(aboutCertificates(err), advice), "sink.url: %w", err)
}

// aboutCertificates returns the advice for a connection that failed because of
// a certificate, and "" for any other failure. Some clients return only the
// text of the error.
func aboutCertificates(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	says := func(part string) bool { return strings.Contains(err.Error(), part) }
	switch {
	case errors.As(err, &unknown), says("signed by unknown authority"), says("certificate is not trusted"):
		return "add ca=FILE to sink.url: the certificate of the authority that signed the server's certificate"
	case errors.As(err, &name), says("x509: certificate is valid for"), says("doesn't contain any IP SANs"):
		return "use the host name of the server's certificate in sink.url"
	case says("tls: certificate required"), says("tls: bad certificate"):
		return "add cert=FILE and key=FILE to sink.url: the server requires a client certificate"
	}
	return ""
}

type nothing struct{}

func (nothing) close() {}

// errLater reports that the embedded server is not running.
var errLater = errors.New("the server runs inside waybill serve, which is not running")

func sinkChecks() []Check {
	return slices.Concat([]Check{{
		Name: "sink", For: anySink, Looks: "`sink.url`", Wants: "a server that answers",
		run: func(ctx context.Context, p *patient) (Finding, error) {
			switch {
			case errors.Is(p.noSink, connect.ErrNoSink):
				return Finding{Status: NotChecked, Text: "no sink is configured", Type: "to deliver these events with waybill serve, set sink.url"}, nil
			case errors.Is(p.noSink, errLater):
				start := "waybill serve"
				if p.noTables == nil {
					var err error
					if start, err = p.starter(ctx); err != nil {
						return Finding{}, err
					}
				}
				return Finding{Status: NotChecked, Text: errLater.Error(), Type: start}, nil
			case p.noSink != nil:
				return failed(p.noSink), nil
			case p.sink == probe(nothing{}):
				return unseen("the destination can be checked only by sending an event"), nil
			}
			return good("%s answers", p.Sink.URL), nil
		},
	}}, natsChecks(), kafkaChecks(), amqpChecks(), redisChecks(), pulsarChecks(), webhookChecks())
}

// sampled is the number of events of each state whose topics are checked.
const sampled = 100

// topics returns the topics of the events in the tables. Topics of future
// events are unknown.
func (p *patient) topics(ctx context.Context, names broker.TopicRules) ([]string, error) {
	if p.Sink.Topic != "" && !strings.Contains(p.Sink.Topic, "{") {
		if _, err := names.Template(p.Sink.Topic); err != nil {
			return nil, err
		}
		return []string{p.Sink.Topic}, nil
	}
	var out []string
	err := p.sample(ctx, names, func(_ *waybill.Event, topic string) {
		if !slices.Contains(out, topic) {
			out = append(out, topic)
		}
	})
	return out, err
}

// sample calls see with events in the tables and their topics.
func (p *patient) sample(ctx context.Context, names broker.TopicRules, see func(ev *waybill.Event, topic string)) error {
	topic := names.Checked(nil)
	if p.Sink.Topic != "" {
		var err error
		if topic, err = names.Template(p.Sink.Topic); err != nil {
			return err
		}
	}
	if p.noTables != nil {
		return nil
	}
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		page, err := p.ops.List(ctx, state, store.Filter{}, 0, sampled)
		if err != nil {
			return err
		}
		for i := range page.Records {
			ev := &page.Records[i].Event
			if p.to != nil && !p.to.takes(ev) {
				continue
			}
			if name, err := topic(ev); err == nil {
				see(ev, name)
			}
		}
	}
	return nil
}

// noTopic is the finding of a check of topics without events.
func noTopic() Finding {
	return Finding{Status: NotChecked, Text: "no event exists whose topic could be checked", Type: "waybill send TYPE, then run doctor again"}
}

func webhookChecks() []Check {
	return []Check{
		{
			Name: "webhook", For: webhookSink, Looks: "`sink.url`, `sink.secret`, `sink.unsigned-attributes`", Wants: "https, and a signature of the whole event",
			run: func(_ context.Context, p *patient) (Finding, error) {
				u, secure, err := connect.Webhook(p.Sink)
				if err != nil {
					return failed(err), nil
				}
				secret := p.Sink.Secret.Reveal()
				host := u.Hostname()
				switch {
				case u.Scheme != "https" && host != "localhost" && host != "127.0.0.1" && host != "::1":
					return fail("write https:// in sink.url", "events are sent unencrypted"), nil
				case secure != nil && secure.InsecureSkipVerify:
					return warn("set ca=FILE in sink.url, and remove insecure", "every certificate is accepted: a third party in the network can read and change events"), nil
				case secret == "":
					return fail("set sink.secret to whsec_ and the output of: openssl rand -base64 24", "sink.secret is missing: serve will refuse to start"), nil
				case secret == "unsigned":
					return warn("set sink.secret to whsec_ and the output of: openssl rand -base64 24", "requests are not signed: the receiver cannot verify their origin"), nil
				case p.Sink.UnsignedAttributes:
					return warn("remove sink.unsigned-attributes if the receiver supports structured mode",
						"the signature covers only the payload: a third party that has seen a request can send its payload as another event"), nil
				}
				return good("requests are signed"), nil
			},
		},
		{
			Name: "log sink", For: logSink, Looks: "`sink.url`", Wants: "a broker; printed events are not stored",
			run: func(context.Context, *patient) (Finding, error) {
				return warn("set sink.url to a broker; docs/cli.md lists them", "events are only printed, and count as delivered"), nil
			},
		},
	}
}
