package doctor

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"

	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
)

type pulsarProbe struct{ b *pulsarbroker.Broker }

func (p *pulsarProbe) close() { _ = p.b.Close() }

func dialPulsar(ctx context.Context, u *url.URL) (probe, error) {
	bare := *u
	bare.Path = ""
	b, err := pulsarbroker.Open(ctx, connect.Client(&bare), pulsarbroker.Config{Namespace: strings.Trim(u.Path, "/"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &pulsarProbe{b}, nil
}

func pulsarChecks() []Check {
	return []Check{
		{
			Name: "pulsar subscriptions", For: pulsarSink, Looks: "`subscriptions` of `sink.url`", Wants: "the subscription of every consumer; messages without a subscription are deleted immediately",
			run: func(_ context.Context, p *patient) (Finding, error) {
				u, err := connect.SinkAddress(p.Sink)
				if err != nil {
					return Finding{}, errors.New("malformed URL")
				}
				if u.Query().Get("subscriptions") == "" {
					return warn("add ?subscriptions=NAME,NAME to sink.url, or pulsar-admin namespaces set-retention",
						"no subscription is configured: messages that are published before a consumer subscribes are deleted immediately"), nil
				}
				return good("the subscriptions are created before the first event"), nil
			},
		},
		{
			Name: "pulsar persistence", For: pulsarSink, Looks: "the domain of the topics; quorums and retention are not visible to clients", Wants: "persistent://",
			run: func(_ context.Context, p *patient) (Finding, error) {
				if strings.HasPrefix(p.Sink.Topic, "non-persistent://") {
					return fail("remove non-persistent:// from sink.topic", "topics are not persistent: a restart of the broker loses all events"), nil
				}
				return Finding{
					Status: NotChecked, Text: "topics are persistent; the number of bookies is not visible to clients",
					Type: "pulsar-admin namespaces get-persistence TENANT/NAMESPACE; the ack quorum should be 2 or more",
				}, nil
			},
		},
	}
}
