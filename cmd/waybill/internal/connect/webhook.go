package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/url"
	"strings"

	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

func openWebhook(_ context.Context, _ *url.URL, cfg SinkConfig) (*Sink, error) {
	if cfg.Topic != "" {
		return nil, hint.New("omit it: every event goes to one URL", "sink.topic: %w: a webhook has no topics", ErrBadSetting)
	}
	wc := webhook.Config{EventSource: cfg.EventSource, UnsignedAttributes: cfg.UnsignedAttributes, PublicOnly: cfg.PublicOnly}
	switch secret := cfg.Secret.Reveal(); secret {
	case "":
		return nil, hint.New("set sink.secret to whsec_ and at least 24 random bytes in base64, or to unsigned", "sink.secret: %w: missing", ErrBadSetting)
	case "unsigned":
		if wc.UnsignedAttributes {
			return nil, hint.New("omit it: unsigned requests are sent in binary mode", "sink.unsigned-attributes: %w: sink.secret is unsigned", ErrBadSetting)
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
	// Without the path, which is often the only protection of an endpoint.
	driver.WarnInsecure(cmp.Or(cfg.Logger, slog.Default()), secure, endpoint.Scheme+"://"+endpoint.Host)
	return &Sink{Sink: s, close: s.Close}, nil
}

// Webhook returns the endpoint of sink.url, and the TLS config of its
// parameters; nil without such parameters.
func Webhook(cfg settings.Sink) (*url.URL, *tls.Config, error) {
	u, err := url.Parse(cfg.URL.Reveal())
	if err != nil { // err quotes the URL
		return nil, nil, badURL("sink.url", "write https://host/path", "malformed")
	}
	endpoint, given := splitTLS(u)
	if len(given) > 0 && u.Scheme != "https" {
		return nil, nil, badURL("sink.url", "write https://, or omit ca, cert, key and insecure", "TLS parameters without TLS")
	}
	secure, err := driver.TakeTLS(given, nil)
	if err != nil {
		return nil, nil, hint.New("ca, cert and key name files in PEM; see docs/brokers.md", "sink.url: %w: %w", ErrBadSetting, clean(cfg.URL, err))
	}
	return endpoint, secure, nil
}

// splitTLS removes the TLS parameters from a webhook's URL. All others belong
// to the endpoint and stay as they are. key without cert stays, too: endpoints
// use that name for their own secrets.
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
