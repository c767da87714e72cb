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

	"github.com/waybillhq/waybill/broker"
)

const scheme = "kafka://"

// ClientOptions returns what a URL says, as options of the client, for programs that look at a
// cluster. Errors may show the URL.
func ClientOptions(url string, log *slog.Logger) ([]kgo.Opt, error) {
	return options(url, Config{Logger: log})
}

// options returns what a URL says, as options of the client. It warns of what is not safe.
func options(text string, cfg Config) ([]kgo.Opt, error) {
	u, hosts, err := parse(text)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{kgo.SeedBrokers(hosts...)}
	query := u.Query()
	secure, err := broker.TakeTLS(query, cfg.TLS)
	if err != nil {
		return nil, err
	}
	for name := range query {
		if name != "tls" && name != "sasl" {
			return nil, fmt.Errorf("no parameter %q: there are tls, ca, cert, key, insecure and sasl", name)
		}
	}
	switch query.Get("tls") {
	case "":
	case "false":
		if secure != nil {
			return nil, errors.New("parameter tls: it is false, and there is a config for TLS")
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
	broker.WarnInsecure(log, secure, scheme+hosts[0])
	if mechanism != nil && mechanism.Name() == "PLAIN" && secure == nil {
		log.Warn("waybill: INSECURE: the password goes to Kafka as plain text; use tls=true, or sasl=scram-sha-512", "broker", scheme+hosts[0])
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// parse takes the hosts apart by hand: URLs have one.
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
			return nil, nil, errors.New("want one or more hosts, with commas between them")
		}
		if one.Port() == "" {
			hosts[i] = net.JoinHostPort(one.Hostname(), "9092")
		}
	}
	u, err := url.Parse(scheme + user + hosts[0] + rest[end:])
	if err != nil {
		return nil, nil, errors.New("it cannot be read; special characters of a password have to be percent-encoded")
	}
	if u.Path != "" && u.Path != "/" {
		return nil, nil, errors.New("it has a path; topics are not part of it")
	}
	return u, hosts, nil
}

// mechanism returns how to log in; nil: not at all.
func mechanism(user *url.Userinfo, name string) (sasl.Mechanism, error) {
	if user == nil {
		if name != "" {
			return nil, errors.New("parameter sasl: there is no user")
		}
		return nil, nil //nolint:nilnil // nobody has to log in, and nothing is wrong with that
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
