package rabbitbroker_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/testserver"
)

// unserved returns the address of a host that refuses connections, and of one
// that accepts them and never answers.
func unserved(t *testing.T) (refuses, hangs string) {
	t.Helper()
	var at [2]string
	for i := range at {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at[i] = l.Addr().String()
		if i == 0 {
			_ = l.Close()
		} else {
			t.Cleanup(func() { _ = l.Close() })
		}
	}
	return at[0], at[1]
}

// A connection that is lost continues at another host, whatever the others do.
func TestHosts(t *testing.T) {
	address := testserver.RabbitMQ(t)
	client := plain{t, address}
	topic := client.exchange()
	refuses, hangs := unserved(t)
	p := newProxy(t, address)
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	all := "amqp://" + u.User.String() + "@" + strings.Join([]string{refuses, hangs, u.Host}, ",") + u.Path
	s := sink(t, open(t, all, rabbitbroker.Config{PublishTimeout: 9 * time.Second}), rabbitbroker.SinkConfig{})
	if err := s.Deliver(t.Context(), []waybill.Delivery{event(topic, "1")})[0]; err != nil {
		t.Fatal(err)
	}
	p.stop()
	err = s.Deliver(t.Context(), []waybill.Delivery{event(topic, "2")})[0]
	if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable {
		t.Errorf("without a host: class %v: %v", class, err)
	}
	p.start()
	await(t, "a connection to the host", func() bool { return s.Deliver(t.Context(), []waybill.Delivery{event(topic, "3")})[0] == nil })
	if found, err := client.read(topic + ".all"); err != nil || len(found) != 2 {
		t.Errorf("%d messages, %v", len(found), err)
	}
}

// Connections begin with one host after the other.
func TestHostsTakeTurns(t *testing.T) {
	u, err := url.Parse(testserver.RabbitMQ(t))
	if err != nil {
		t.Fatal(err)
	}
	other := "localhost:" + u.Port()
	dial, err := rabbitbroker.Dialer("amqp://" + u.User.String() + "@" + u.Host + "," + other + u.Path + "?heartbeat=7")
	if err != nil {
		t.Fatal(err)
	}
	var dialed []string
	for range 3 {
		conn, err := dial(t.Context(), amqp.Config{Dial: func(network, address string) (net.Conn, error) {
			dialed = append(dialed, address)
			return amqp.DefaultDial(10*time.Second)(network, address)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if conn.Config.Heartbeat != 7*time.Second {
			t.Errorf("the heartbeat is %v", conn.Config.Heartbeat)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if got, want := strings.Join(dialed, " "), u.Host+" "+other+" "+u.Host; got != want {
		t.Errorf("dialed %s, want %s", got, want)
	}
}

// No error shows the password, whichever host it is about.
func TestHostsAreUnreachable(t *testing.T) {
	refuses, _ := unserved(t)
	other, _ := unserved(t)
	for _, address := range []string{
		"amqp://user:canary@" + refuses + "," + other + "/",
		"amqp://user:canary@" + refuses + ",[bad/",
		"amqp://user:canary@" + refuses + "," + other + "/?ca=/ca.pem",
	} {
		_, err := rabbitbroker.Open(t.Context(), address, rabbitbroker.Config{})
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v", err)
		}
	}
	_, err := rabbitbroker.Open(t.Context(), "amqp://user:canary@"+refuses+","+other+"/", rabbitbroker.Config{})
	if err == nil || !strings.Contains(err.Error(), refuses) || !strings.Contains(err.Error(), other) {
		t.Errorf("the error does not name both hosts: %v", err)
	}
}

// Dead letters are replicated as the messages are. A queue that exists is used
// unchanged.
func TestQueueOfDeadLetters(t *testing.T) {
	client := plain{t, testserver.RabbitMQ(t)}
	b := open(t, client.url, rabbitbroker.Config{})
	quorum := amqp.Table{"x-queue-type": "quorum"}
	for name, tc := range map[string]struct {
		exists, classic bool
		want, other     amqp.Table
	}{
		"new":     {want: quorum},
		"classic": {classic: true, other: quorum},
		"exists":  {exists: true, other: quorum},
	} {
		t.Run(name, func(t *testing.T) {
			queue := "test." + waybill.NewID().String()
			declare := func(args amqp.Table) error {
				return client.on(func(ch *amqp.Channel) error {
					_, err := ch.QueueDeclare(queue+".dead", true, false, false, false, args)
					return err
				})
			}
			if tc.exists {
				if err := declare(nil); err != nil {
					t.Fatal(err)
				}
			}
			s, err := b.Source(rabbitbroker.SourceConfig{Queue: queue, Classic: tc.classic, Bind: []rabbitbroker.Binding{{Exchange: queue, Key: "#"}}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = client.on(func(ch *amqp.Channel) error {
					_, _ = ch.QueueDelete(queue, false, false, false)
					_, _ = ch.QueueDelete(queue+".dead", false, false, false)
					return ch.ExchangeDelete(queue, false, false)
				})
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			got := make(chan bool, 1)
			go func() {
				ended <- s.Run(ctx, consumerFunc(func(_ context.Context, batch []waybill.Delivery) []error {
					got <- true
					return make([]error, len(batch))
				}))
			}()
			to := sink(t, b, rabbitbroker.SinkConfig{})
			await(t, "an event", func() bool { return to.Deliver(t.Context(), []waybill.Delivery{event(queue, "1")})[0] == nil })
			<-got
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if err := declare(tc.want); err != nil {
				t.Errorf("as expected: %v", err)
			}
			if err := declare(tc.other); err == nil {
				t.Error("the queue has other properties as well")
			}
		})
	}
}
