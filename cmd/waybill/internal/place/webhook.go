package place

import (
	"context"
	"net/url"
	"strings"

	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

func openWebhook(_ context.Context, _ *url.URL, cfg SinkConfig) (*Sink, error) {
	if cfg.Topic != "" {
		return nil, hint.New("leave it out: every event goes to the one URL", "sink.topic: %w: a webhook has no topics", ErrBadSetting)
	}
	wc := webhook.Config{Source: cfg.Source, UnsignedAttributes: cfg.UnsignedAttributes}
	switch secret := cfg.Secret.Reveal(); secret {
	case "":
		return nil, hint.New("set sink.secret to whsec_ and 24 random bytes or more in base 64, or to unsigned", "sink.secret: %w: there is none", ErrBadSetting)
	case "unsigned":
		if wc.UnsignedAttributes {
			return nil, hint.New("leave it out: requests that are not signed are sent in binary mode", "sink.unsigned-attributes: %w: sink.secret says that nothing is signed", ErrBadSetting)
		}
		wc.Unsigned = true
	default:
		wc.Secrets = strings.Split(secret, ",")
	}
	s, err := webhook.NewSink(cfg.URL.Reveal(), wc)
	if err != nil {
		return nil, hint.New("see docs/brokers.md", "sink.url: %w: %w", ErrBadSetting, clean(cfg.Secret, clean(cfg.URL, err)))
	}
	return &Sink{Sink: s, close: s.Close}, nil
}
