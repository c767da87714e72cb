package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/store"
)

// probe is a connection to the server behind a sink, for looking only.
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

// sinkKind returns the kind of a sink: schemes of one kind differ by an s.
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

// dial connects to the server behind a sink.
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
		p, err = dialAMQP(u)
	case redisSink:
		p, err = dialRedis(ctx, u)
	case pulsarSink:
		p, err = dialPulsar(ctx, u)
	default: // there is nobody to ask before an event is posted, and printing needs no server
		return nothing{}, nil
	}
	if err == nil || hint.Of(err) != "" {
		return p, err
	}
	advice := "is the server running, and are name and password right? waybill config says where sink.url came from"
	return nil, hint.New(cmp.Or(aboutCertificates(err), advice), "sink.url: %w", err)
}

// aboutCertificates says what to do about a connection that failed because of a certificate; of
// another it says nothing. Some clients pass on the text alone.
func aboutCertificates(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	says := func(part string) bool { return strings.Contains(err.Error(), part) }
	switch {
	case errors.As(err, &unknown), says("signed by unknown authority"), says("certificate is not trusted"):
		return "add ca=FILE to sink.url: the certificate of the authority that the server's is of"
	case errors.As(err, &name), says("x509: certificate is valid for"), says("doesn't contain any IP SANs"):
		return "write the server's name in sink.url as its certificate has it"
	case says("tls: certificate required"), says("tls: bad certificate"):
		return "add cert=FILE and key=FILE to sink.url: the server wants a certificate of its clients"
	}
	return ""
}

type nothing struct{}

func (nothing) close() {}

// errLater says that there is no server yet, and need not be.
var errLater = errors.New("the server runs inside waybill serve, and that does not run")

func sinkChecks() []Check {
	return slices.Concat([]Check{{
		Name: "sink", For: anySink, Looks: "`sink.url`", Wants: "a server that answers",
		run: func(ctx context.Context, p *patient) (Finding, error) {
			switch {
			case errors.Is(p.noSink, connect.ErrNoSink):
				return Finding{Status: NotChecked, Text: "no sink is set", Type: "if waybill serve is to deliver these events, set sink.url"}, nil
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
				return unseen("whether anybody takes events there is seen when the first is sent"), nil
			}
			return good("%s answers", p.Sink.URL), nil
		},
	}}, natsChecks(), kafkaChecks(), amqpChecks(), redisChecks(), pulsarChecks(), webhookChecks())
}

// sampled is how many events of each state are looked at for their topics.
const sampled = 100

// topics returns the topics that events of the tables go to: what an outbox will hold, nobody knows.
func (p *patient) topics(ctx context.Context, names broker.TopicRules) ([]string, error) {
	topic := names.Checked(nil)
	if p.Sink.Topic != "" {
		var err error
		if topic, err = names.Template(p.Sink.Topic); err != nil {
			return nil, err
		}
		if !strings.Contains(p.Sink.Topic, "{") {
			return []string{p.Sink.Topic}, nil
		}
	}
	if p.noTables != nil {
		return nil, nil
	}
	var out []string
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		page, err := p.desk.List(ctx, state, store.Filter{}, 0, sampled)
		if err != nil {
			return nil, err
		}
		for i := range page.Records {
			name, err := topic(&page.Records[i].Event)
			if err == nil && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// noTopic is what a check of topics finds where there is none to look at.
func noTopic() Finding {
	return Finding{Status: NotChecked, Text: "there is no event whose topic could be looked at", Type: "waybill send TYPE, then look again"}
}

func webhookChecks() []Check {
	return []Check{
		{
			Name: "webhook", For: webhookSink, Looks: "`sink.url`, `sink.secret`, `sink.unsigned-attributes`", Wants: "https, and a secret that signs the whole event",
			run: func(_ context.Context, p *patient) (Finding, error) {
				u, secure, err := connect.Webhook(p.Sink)
				if err != nil {
					return failed(err), nil
				}
				secret := p.Sink.Secret.Reveal()
				host := u.Hostname()
				switch {
				case u.Scheme != "https" && host != "localhost" && host != "127.0.0.1" && host != "::1":
					return fail("write https:// in sink.url", "events travel in the clear"), nil
				case secure != nil && secure.InsecureSkipVerify:
					return warn("name the authority with ca=FILE in sink.url, and leave insecure out", "any certificate is taken: anyone on the way can read and change events"), nil
				case secret == "":
					return fail("set sink.secret to whsec_ and the output of: openssl rand -base64 24", "there is no sink.secret: serve will refuse to start"), nil
				case secret == "unsigned":
					return warn("set sink.secret to whsec_ and the output of: openssl rand -base64 24", "requests are not signed: the receiver cannot tell who sent them"), nil
				case p.Sink.UnsignedAttributes:
					return warn("leave sink.unsigned-attributes out when the receiver reads structured mode",
						"a signature covers the payload only: anyone who has seen a request can send its payload as another event"), nil
				}
				return good("requests are signed"), nil
			},
		},
		{
			Name: "log sink", For: logSink, Looks: "`sink.url`", Wants: "a broker: what is printed is kept by nobody",
			run: func(context.Context, *patient) (Finding, error) {
				return warn("set sink.url to a broker; waybill serve --help names them", "events are printed, and count as delivered"), nil
			},
		},
	}
}
