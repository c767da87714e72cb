package kafkabroker

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybillhq/waybill/broker/driver"
)

const scheme = "kafka://"

// ClientOptions returns the client options for a URL, for programs that inspect
// a cluster. Errors may show the URL.
func ClientOptions(url string, log *slog.Logger) ([]kgo.Opt, error) {
	return options(url, Config{Logger: log})
}

// options returns the client options for a URL. It logs warnings about insecure
// settings.
func options(text string, cfg Config) ([]kgo.Opt, error) {
	u, hosts, err := parse(text)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{kgo.SeedBrokers(hosts...)}
	query := u.Query()
	secure, err := driver.TakeTLS(query, cfg.TLS)
	if err != nil {
		return nil, err
	}
	for name := range query {
		if name != "tls" && name != "sasl" {
			return nil, fmt.Errorf("unknown parameter %q: want tls, ca, cert, key, insecure or sasl", name)
		}
	}
	switch query.Get("tls") {
	case "":
	case "false":
		if secure != nil {
			return nil, errors.New("parameter tls: false, but there is a TLS config")
		}
	case "true":
		if secure == nil {
			secure = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	default:
		return nil, errors.New("parameter tls: want true or false")
	}
	if secure != nil {
		opts = append(opts, kgo.DialTLSConfig(secure))
	}
	mechanism, err := mechanism(u.User, query.Get("sasl"))
	if err != nil {
		return nil, err
	}
	log := cmp.Or(cfg.Logger, slog.Default())
	driver.WarnInsecure(log, secure, scheme+hosts[0])
	if mechanism != nil && mechanism.Name() == "PLAIN" && secure == nil {
		log.Warn("INSECURE: the password is sent to Kafka as plain text; use tls=true, or sasl=scram-sha-512", "broker", scheme+hosts[0])
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// parse splits the hosts itself, because net/url supports only one.
func parse(text string) (*url.URL, []string, error) {
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok {
		return nil, nil, errors.New("want " + scheme + "host:port")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	user, list := "", rest[:end]
	if at := strings.LastIndexByte(list, '@'); at >= 0 {
		user, list = list[:at+1], list[at+1:]
	}
	hosts := strings.Split(list, ",")
	for i, host := range hosts {
		one, err := url.Parse(scheme + host)
		if err != nil || one.Hostname() == "" || one.Host != host {
			return nil, nil, errors.New("want one or more hosts, separated by commas")
		}
		if one.Port() == "" {
			hosts[i] = net.JoinHostPort(one.Hostname(), "9092")
		}
	}
	u, err := url.Parse(scheme + user + hosts[0] + rest[end:])
	if err != nil {
		return nil, nil, errors.New("not a valid URL; percent-encode special characters in the password")
	}
	if u.Path != "" && u.Path != "/" {
		return nil, nil, errors.New("path not allowed; topics are configured separately")
	}
	return u, hosts, nil
}

// mechanism returns the SASL mechanism, or nil for none.
func mechanism(user *url.Userinfo, name string) (sasl.Mechanism, error) {
	if user == nil {
		if name != "" {
			return nil, errors.New("parameter sasl: no user")
		}
		return nil, nil //nolint:nilnil // no login is valid
	}
	password, _ := user.Password()
	switch strings.ToLower(name) {
	case "", "plain":
		return plain.Auth{User: user.Username(), Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, errors.New("parameter sasl: want plain, scram-sha-256 or scram-sha-512")
}
