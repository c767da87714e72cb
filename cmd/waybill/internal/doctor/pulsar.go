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
			Name: "pulsar subscriptions", For: pulsarSink, Looks: "`subscriptions` of `sink.url`", Wants: "every consumer's: what no subscription waits for is deleted at once",
			run: func(_ context.Context, p *patient) (Finding, error) {
				u, err := connect.SinkAddress(p.Sink)
				if err != nil {
					return Finding{}, errors.New("the URL cannot be read")
				}
				if u.Query().Get("subscriptions") == "" {
					return warn("add ?subscriptions=NAME,NAME to sink.url, or pulsar-admin namespaces set-retention",
						"no subscription is named: what is published before a consumer has subscribed is deleted at once"), nil
				}
				return good("they are made before the first event"), nil
			},
		},
		{
			Name: "pulsar persistence", For: pulsarSink, Looks: "the topics' domain; quorums and retention, which no client can see", Wants: "persistent://",
			run: func(_ context.Context, p *patient) (Finding, error) {
				if strings.HasPrefix(p.Sink.Topic, "non-persistent://") {
					return fail("leave non-persistent:// out of sink.topic", "topics are not persistent: a restart of the broker loses every event"), nil
				}
				return Finding{
					Status: NotChecked, Text: "topics are persistent; no client can see on how many bookies",
					Type: "pulsar-admin namespaces get-persistence TENANT/NAMESPACE, and want an ack quorum of 2 or more",
				}, nil
			},
		},
	}
}
