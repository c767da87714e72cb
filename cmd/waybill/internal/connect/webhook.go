package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/url"
	"strings"

	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func openWebhook(_ context.Context, _ *url.URL, cfg SinkConfig) (*Sink, error) {
	if cfg.Topic != "" {
		return nil, hint.New("leave it out: every event goes to the one URL", "sink.topic: %w: a webhook has no topics", ErrBadSetting)
	}
	wc := webhook.Config{EventSource: cfg.Source, UnsignedAttributes: cfg.UnsignedAttributes, PublicOnly: cfg.PublicOnly}
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
	endpoint, secure, err := Webhook(cfg.Sink)
	if err != nil {
		return nil, err
	}
	wc.TLS = secure
	s, err := webhook.NewSink(endpoint.String(), wc)
	if err != nil {
		return nil, hint.New("see docs/brokers.md", "sink.url: %w: %w", ErrBadSetting, clean(cfg.Secret, clean(cfg.URL, err)))
	}
	// Without the path, which is often all that protects an endpoint.
	broker.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, endpoint.Scheme+"://"+endpoint.Host)
	return &Sink{Sink: s, close: s.Close}, nil
}

// Webhook returns the endpoint that sink.url names, and the config that the
// parameters for TLS in it describe; nil without them.
func Webhook(cfg settings.Sink) (*url.URL, *tls.Config, error) {
	u, err := url.Parse(cfg.URL.Reveal())
	if err != nil { // the error quotes the URL
		return nil, nil, badURL("sink.url", "write https://host/path", "it cannot be read")
	}
	endpoint, given := splitTLS(u)
	if len(given) > 0 && u.Scheme != "https" {
		return nil, nil, badURL("sink.url", "write https://, or leave ca, cert, key and insecure out", "it has parameters for TLS, and no TLS")
	}
	secure, err := broker.TakeTLS(given, nil)
	if err != nil {
		return nil, nil, hint.New("ca, cert and key name files in PEM; see docs/brokers.md", "sink.url: %w: %w", ErrBadSetting, clean(cfg.URL, err))
	}
	return endpoint, secure, nil
}

// splitTLS takes the parameters for TLS out of a webhook's URL. All others are
// the endpoint's, and stay as they are written. So does key without cert:
// endpoints call their own secrets that.
func splitTLS(u *url.URL) (*url.URL, url.Values) {
	names := []string{"ca", "cert", "insecure", "skip_verify"}
	if u.Query().Has("cert") {
		names = append(names, "key")
	}
	given := url.Values{}
	var kept []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		one, err := url.ParseQuery(part)
		took := false
		for _, name := range names {
			if err == nil && one.Has(name) {
				given.Add(name, one.Get(name))
				took = true
			}
		}
		if !took {
			kept = append(kept, part)
		}
	}
	rest := *u
	rest.RawQuery = strings.Join(kept, "&")
	return &rest, given
}
