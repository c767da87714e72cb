package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/demo/shop"
)

// durable is the durable consumer of the inventory.
const durable = "inventory"

// silent is the logger of all parts: log lines would tear the screen.
var silent = slog.New(slog.DiscardHandler)

// line is an embedded JetStream server, which can be stopped and restarted on
// the same port with the same files, and an inventory in this process.
type line struct {
	dir     string
	sink    waybill.Sink
	source  broker.Source
	to      waybill.Sink // the inventory
	links   []*natsbroker.Broker
	lookout *nats.Conn // counts messages

	mu      sync.Mutex
	running *natsembed.Server
	url     string
	port    int
}

// Words implements [shop.Line].
func (*line) Words() shop.Words {
	return shop.Words{
		Destination: "jetstream", Label: "JetStream", Parts: "a shop on SQLite and an embedded JetStream server",
		AckLost: "a PubAck was lost: published again", Stop: "the broker was stopped and restarted",
		Crash: "the consumer died before its commit", DeadAfter: "the consumer died before its ack",
	}
}

// Open implements [shop.Line].
func (l *line) Open(ctx context.Context, site shop.Site) (err error) {
	l.dir = filepath.Join(site.Dir, "jetstream")
	if err := l.Start(ctx); err != nil {
		return err
	}
	var ends [2]*natsbroker.Broker // the shop and the inventory have a connection each
	for i := range ends {
		if ends[i], err = natsbroker.Open(ctx, l.url, natsbroker.Config{
			Stream: shop.Stream, Create: true, Subjects: []string{shop.Stream + ".>"}, Logger: silent,
		}); err != nil {
			return err
		}
		l.links = append(l.links, ends[i])
	}
	if l.sink, err = ends[0].Sink(natsbroker.SinkConfig{}); err != nil {
		return err
	}
	l.source, err = ends[1].Source(natsbroker.SourceConfig{Durable: durable, AckWait: time.Second, Receive: broker.ReceiverConfig{
		// A crashed consumer does not finish its messages in flight.
		DrainTimeout: -1, BackoffBase: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond, ReconnectMax: 500 * time.Millisecond, Observe: site.Hooks,
		Logger: silent,
	}})
	if err != nil {
		return err
	}
	if l.lookout, err = nats.Connect(l.url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond)); err != nil {
		return fmt.Errorf("demo: the broker: %w", err)
	}
	l.to, err = site.Consumer()
	return err
}

// Sink implements [shop.Line].
func (l *line) Sink() waybill.Sink { return l.sink }

// Inventory implements [shop.Line].
func (l *line) Inventory(ctx context.Context) error { return l.source.Run(ctx, l.to) }

// Start implements [shop.Line].
func (l *line) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		return nil
	}
	running, err := natsembed.Start(ctx, natsembed.Config{Dir: l.dir, Port: l.port, Logger: silent})
	if err != nil {
		return fmt.Errorf("demo: the broker: %w", err)
	}
	l.running, l.url = running, running.URL()
	u, err := url.Parse(l.url)
	if err != nil {
		return fmt.Errorf("demo: the broker: %w", err)
	}
	l.port, err = strconv.Atoi(u.Port())
	return err
}

// Stop implements [shop.Line].
func (l *line) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.Close()
		l.running = nil
	}
}

// Up implements [shop.Line]. It returns false during a start or a stop.
func (l *line) Up() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	return l.running != nil
}

// InFlight implements [shop.Line]: the number of messages that the inventory
// has not acknowledged.
func (l *line) InFlight(ctx context.Context) (int, error) {
	js, err := jetstream.New(l.lookout)
	if err != nil {
		return 0, err
	}
	c, err := js.Consumer(ctx, shop.Stream, durable)
	if err != nil {
		return 0, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil //nolint:gosec // a count of messages
}

// Close implements [shop.Line].
func (l *line) Close() error {
	if l.lookout != nil {
		l.lookout.Close()
	}
	var errs []error
	for _, link := range l.links {
		errs = append(errs, link.Close())
	}
	l.Stop()
	return errors.Join(errs...)
}
