package demo

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
)

const (
	stream = "shop"
	// inventory is the durable consumer.
	inventory = "inventory"
	// group is the consumer group of the inventory's inbox.
	group = "INVENTORY"
)

// server is the embedded JetStream server, which can be stopped and restarted
// on the same port with the same files.
type server struct {
	dir string

	mu      sync.Mutex
	running *natsembed.Server
	url     string
	port    int
}

func (s *server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return nil
	}
	running, err := natsembed.Start(ctx, natsembed.Config{Dir: s.dir, Port: s.port, Logger: silent})
	if err != nil {
		return fmt.Errorf("demo: the broker: %w", err)
	}
	s.running, s.url = running, running.URL()
	u, err := url.Parse(s.url)
	if err != nil {
		return fmt.Errorf("demo: the broker: %w", err)
	}
	s.port, err = strconv.Atoi(u.Port())
	return err
}

func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.Close()
		s.running = nil
	}
}

// up reports whether the server runs. It returns false during a start or a
// stop.
func (s *server) up() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	return s.running != nil
}

// connect returns a connection; each process of a shop would have its own.
func (s *server) connect(ctx context.Context) (*natsbroker.Broker, error) {
	return natsbroker.Open(ctx, s.url, natsbroker.Config{Stream: stream, Create: true, Subjects: []string{stream + ".>"}, Logger: silent})
}

// lookout counts the broker's messages for the inventory.
type lookout struct {
	conn *nats.Conn
	js   jetstream.JetStream
}

func (s *server) lookout() (*lookout, error) {
	conn, err := nats.Connect(s.url, nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait))
	if err != nil {
		return nil, fmt.Errorf("demo: the broker: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("demo: the broker: %w", err)
	}
	return &lookout{conn, js}, nil
}

// waiting returns the number of messages that the inventory has not
// acknowledged.
func (l *lookout) waiting(ctx context.Context) (int, error) {
	c, err := l.js.Consumer(ctx, stream, inventory)
	if err != nil {
		return 0, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil //nolint:gosec // a count of messages
}
