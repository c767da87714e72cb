package rabbitbroker

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker/driver"
)

// Dialer returns the function with which [Open] connects, for programs that
// need their own connection. A cluster's URL has several hosts, separated by
// commas: amqp://user:password@host:port,host2:port/vhost. Each connection
// begins with the next host and tries the others if it is unreachable. amqps://
// URLs may have the parameters ca, cert and key, which name PEM files, and
// insecure=true, which accepts any certificate.
func Dialer(url string) (Dial, error) {
	all, err := hostsOf(url)
	if err != nil {
		return nil, err
	}
	return all.dial, nil
}

// hosts are the servers of a URL.
type hosts struct {
	urls   []string // in the client's form, one for each host
	secure *tls.Config
	next   atomic.Uint64
}

func hostsOf(text string) (*hosts, error) {
	all := &hosts{}
	for _, one := range split(text) {
		if err := all.add(one); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (h *hosts) add(text string) error {
	if _, err := amqp.ParseURI(text); err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	query := u.Query()
	if h.secure, err = driver.TakeTLS(query, nil); err != nil {
		return err
	}
	if h.secure != nil && u.Scheme != "amqps" {
		return errors.New("parameters ca, cert, key and insecure require amqps://")
	}
	if u.RawQuery != "" {
		u.RawQuery = query.Encode()
		text = u.String()
	}
	h.urls = append(h.urls, text)
	return nil
}

// split returns a URL for each host. The hosts are split without net/url, which
// supports only one.
func split(text string) []string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return []string{text}
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	at := strings.LastIndexByte(rest[:end], '@') + 1
	var all []string
	for host := range strings.SplitSeq(rest[at:end], ",") {
		all = append(all, scheme+"://"+rest[:at]+host+rest[end:])
	}
	return all
}

// dial tries each host once. It does not begin with the host of the last
// connection, which may have been lost because that host hangs.
func (h *hosts) dial(ctx context.Context, config amqp.Config) (*amqp.Connection, error) {
	var errs []error
	for range h.urls {
		config.TLSClientConfig = h.secure.Clone() // the client sets the server name in it
		next := (h.next.Add(1) - 1) % uint64(len(h.urls))
		conn, err := amqp.DialConfig(h.urls[next], config)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}
