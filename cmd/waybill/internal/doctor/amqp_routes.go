package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
)

// management is RabbitMQ's management API: AMQP does not report bindings.
type management struct {
	base   string
	vhost  string
	user   *url.Userinfo
	client *http.Client
}

// managementTimeout is the time limit of a request. Most servers whose API
// cannot be reached are behind a firewall that does not answer.
const managementTimeout = 3 * time.Second

// managementOf returns the API at its usual port, with the account of the sink.
func managementOf(u *url.URL) (management, error) {
	host, _, _ := strings.Cut(u.Host, ",")
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	scheme, port := "http", "15672"
	transport := &http.Transport{DisableKeepAlives: true}
	if u.Scheme == "amqps" {
		scheme, port = "https", "15671"
		secure, err := driver.TakeTLS(u.Query(), &tls.Config{MinVersion: tls.VersionTLS12})
		if err != nil {
			return management{}, err
		}
		transport.TLSClientConfig = secure
	}
	return management{
		base: scheme + "://" + net.JoinHostPort(strings.Trim(host, "[]"), port), vhost: cmp.Or(strings.TrimPrefix(u.Path, "/"), "/"), user: u.User,
		client: &http.Client{Transport: transport, Timeout: managementTimeout},
	}, nil
}

// get decodes the answer of the API about an exchange.
func (m management) get(ctx context.Context, exchange, more string, out any) error {
	address := m.base + "/api/exchanges/" + url.PathEscape(m.vhost) + "/" + url.PathEscape(exchange) + more
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	r.SetBasicAuth("guest", "guest") // as AMQP clients do
	if m.user != nil {
		password, _ := m.user.Password()
		r.SetBasicAuth(m.user.Username(), password)
	}
	answer, err := m.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return json.NewDecoder(answer.Body).Decode(out)
}

// exchange is an exchange with its bindings.
type exchange struct {
	Type      string         `json:"type"`
	Policy    string         `json:"policy"`
	Arguments map[string]any `json:"arguments"`
	bindings  []amqpBinding
}

type amqpBinding struct {
	// To is what is bound: a queue or an exchange.
	To  string `json:"destination_type"`
	Key string `json:"routing_key"`
}

func (m management) exchange(ctx context.Context, name string) (e exchange, err error) {
	if err = m.get(ctx, name, "", &e); err == nil {
		err = m.get(ctx, name, "/bindings/source", &e.bindings)
	}
	return e, err
}

// The results of routing a message.
const (
	unrouted = iota
	routed
	// unclear means that the message may be routed.
	unclear
)

// route returns where the exchange routes a key.
func (e exchange) route(key string) int {
	result := unrouted
	if e.Policy != "" || e.Arguments["alternate-exchange"] != nil {
		result = unclear // another exchange takes what this one does not route
	}
	for _, b := range e.bindings {
		switch {
		case !e.matches(b.Key, key):
		case b.To == "queue" && e.Type != amqp.ExchangeHeaders:
			return routed
		default:
			result = unclear
		}
	}
	return result
}

// matches reports whether a binding takes a key.
func (e exchange) matches(pattern, key string) bool {
	switch e.Type {
	case amqp.ExchangeDirect:
		return pattern == key
	case amqp.ExchangeTopic:
		return matchesTopic(strings.Split(pattern, "."), strings.Split(key, "."))
	}
	return true
}

// matchesTopic reports whether the words of a key match those of a pattern: *
// stands for one word, and # for any number of words.
func matchesTopic(pattern, key []string) bool {
	if len(pattern) == 0 {
		return len(key) == 0
	}
	if pattern[0] == "#" {
		return matchesTopic(pattern[1:], key) || len(key) > 0 && matchesTopic(pattern, key[1:])
	}
	return len(key) > 0 && (pattern[0] == "*" || pattern[0] == key[0]) && matchesTopic(pattern[1:], key[1:])
}

// amqpPlace is an exchange and a routing key.
type amqpPlace struct{ exchange, key string }

// amqpRouted finds an event that no queue would receive.
func amqpRouted(ctx context.Context, p *patient) (Finding, error) {
	a, ok := p.sink.(*amqpProbe)
	switch {
	case !ok:
		return Finding{}, errors.New("no connection")
	case a.queues:
		return good("events are sent to queues"), nil
	}
	seen := make(map[amqpPlace]bool)
	var all []amqpPlace
	err := p.sample(ctx, rabbitbroker.Names(), func(ev *waybill.Event, topic string) {
		if at := (amqpPlace{topic, cmp.Or(ev.RoutingKey, ev.Type)}); !seen[at] {
			seen[at] = true
			all = append(all, at)
		}
	})
	if err != nil {
		return Finding{}, err
	}
	if len(all) == 0 {
		return noTopic(), nil
	}
	return a.management.routes(ctx, all), nil
}

// routes checks exchanges and keys, until one is not routed.
func (m management) routes(ctx context.Context, all []amqpPlace) Finding {
	known := make(map[string]exchange)
	worst := good("%d routing keys of events in the tables reach a queue", len(all))
	for _, at := range all {
		e, ok := known[at.exchange]
		if !ok {
			var err error
			if e, err = m.exchange(ctx, at.exchange); err != nil {
				return unseen(fmt.Sprintf("AMQP does not report bindings, and RabbitMQ's management API at %s does not either: %v. An event that reaches no queue waits, "+
					"and waybill show ID says NO_ROUTE", m.base, err))
			}
			known[at.exchange] = e
		}
		switch e.route(at.key) {
		case unrouted:
			return fail("rabbitmqadmin declare binding source="+at.exchange+" destination=QUEUE routing_key="+at.key,
				"no queue is bound to exchange %s with the key %s: its events wait", at.exchange, at.key)
		case unclear:
			worst = unseen(fmt.Sprintf("exchange %s routes the key %s to another exchange, by headers, or by a policy", at.exchange, at.key))
		}
	}
	return worst
}
