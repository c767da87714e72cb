//go:build linux || darwin

package brokers_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// TestDestinationsOverThreeBrokers: RabbitMQ, Redis and NATS are destinations
// of one outbox. NATS is killed twice under load: RabbitMQ and Redis go on and
// receive every event once, and NATS catches up in order. An event that NATS
// refuses for good, and a topic that Redis cannot write to, stop nothing else;
// the counts and the journey of an event name them.
func TestDestinationsOverThreeBrokers(t *testing.T) {
	testserver.RabbitMQ(t)
	testserver.Redis(t)
	testserver.Postgres(t)
	t.Parallel()
	d := newTriple(t)
	d.start()
	d.add(d.huge, d.locked)
	for round := range 2 {
		d.write(500)
		must(t, d.victim.Kill(t.Context()))
		d.write(1000)
		await(t, "the other brokers have all events during the outage", func() bool {
			return d.received["rabbit"].Load() == d.written && d.received["redis"].Load() == d.written-1
		})
		if n := d.find("nats"); n.Waiting() == 0 || n.Behind == 0 {
			t.Errorf("round %d: nothing waits for NATS: %+v", round, n)
		}
		d.write(100)
		must(t, d.victim.Restart(t.Context()))
	}
	d.write(300)
	await(t, "NATS has caught up", func() bool { return d.find("nats").Waiting() == 0 })
	await(t, "Redis has all", func() bool { return d.received["redis"].Load() == d.written-1 })
	d.checkArrivals()
	d.checkNames()
	d.mend()
}

// triple is an outbox with three brokers as its destinations.
type triple struct {
	*testing.T
	flow   *flow
	ops    *admin.Destinations
	victim victim
	nats   natsPlace
	rabbit rabbitPlace
	redis  redisPlace

	stream *stream
	rest   []waybill.Event
	// huge is too large for NATS, and locked has a topic that is not a stream
	// of Redis.
	huge, locked waybill.Event
	written      int64
	received     map[string]*atomic.Int64 // by destination
}

// maxNATS is the size of the largest message that NATS accepts.
const maxNATS = 10_000

func newTriple(t *testing.T) *triple {
	t.Helper()
	p := plan{events: 3_500, aggregates: 50, seed: rand.Uint64()}
	d := &triple{T: t, flow: newFlow(t, p, nil), received: map[string]*atomic.Int64{"rabbit": {}, "nats": {}, "redis": {}}}
	var address string
	s := natsStand()
	d.victim, address = s.start(t)
	d.nats = s.place(t, address, d.victim).(natsPlace)
	topic := d.nats.topic()
	d.rabbit, d.redis = rabbitPlace{testserver.RabbitMQ(t), topic}, redisPlace{testserver.Redis(t), topic}
	d.stream = newStream(p, rand.New(rand.NewPCG(p.seed, 1)), topic)
	d.rest = d.stream.events
	d.huge = waybill.NewEvent("Huge", map[string]string{"aggregate": "huge", "text": strings.Repeat("x", 2*maxNATS)})
	d.huge.ID, d.huge.Topic = waybill.NewID(), topic
	d.locked = waybill.NewEvent("Locked", letter{Aggregate: "locked", Number: 1})
	d.locked.ID, d.locked.Topic = waybill.NewID(), d.nats.stream+".locked"
	d.prepare()
	var err error
	d.ops, err = admin.NewDestinations(d.flow.db, admin.Config{})
	must(t, err)
	return d
}

// prepare creates the queue of RabbitMQ, and what Redis cannot write to.
func (d *triple) prepare() {
	d.Helper()
	topics := []string{d.rabbit.exchange, d.locked.Topic}
	must(d.T, d.rabbit.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(d.rabbit.queue(), true, false, false, false, nil)
		for _, topic := range topics {
			err = errors.Join(err, ch.ExchangeDeclare(topic, amqp.ExchangeTopic, true, false, false, false, nil),
				ch.QueueBind(d.rabbit.queue(), "#", topic, false, nil))
		}
		return err
	}))
	client, err := d.redis.client()
	must(d.T, err)
	must(d.T, client.Set(d.Context(), d.locked.Topic, "not a stream", 0).Err())
	d.Cleanup(func() {
		_ = client.Del(context.WithoutCancel(d.Context()), topics...).Err()
		_ = client.Close()
		_ = d.rabbit.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(d.rabbit.queue(), false, false, false)
			return errors.Join(err, ch.ExchangeDelete(topics[0], false, false), ch.ExchangeDelete(topics[1], false, false))
		})
	})
}

// start starts the relay.
func (d *triple) start() {
	d.Helper()
	var to []relay.Destination
	for name, p := range map[string]place{"rabbit": d.rabbit, "nats": d.nats, "redis": d.redis} {
		sink, end, err := p.sink(d.Context(), nil)
		must(d.T, err)
		d.Cleanup(end)
		to = append(to, relay.Destination{Name: name, Sink: tallied(sink, d.received[name])})
	}
	d.limitNATS(maxNATS)
	r, err := relay.NewTo(d.flow.db, relay.Config{
		BackoffBase: 20 * time.Millisecond, BackoffMax: 250 * time.Millisecond, Heartbeat: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}, to...)
	must(d.T, err)
	ctx, cancel := context.WithCancel(d.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	d.Cleanup(func() {
		cancel()
		must(d.T, <-ended)
	})
}

// limitNATS sets the size of the largest message that NATS accepts.
func (d *triple) limitNATS(size int32) {
	d.Helper()
	conn, err := nats.Connect(d.nats.address)
	must(d.T, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	must(d.T, err)
	s, err := js.Stream(d.Context(), d.nats.stream)
	must(d.T, err)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgSize = size
	_, err = js.UpdateStream(d.Context(), cfg)
	must(d.T, err)
}

// tally counts the events that a sink has accepted.
type tally struct {
	relay.DestinationSink
	n *atomic.Int64
}

// Deliver implements [waybill.Sink].
func (s tally) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := s.DestinationSink.Deliver(ctx, batch)
	for _, err := range results {
		if err == nil {
			s.n.Add(1)
		}
	}
	return results
}

// orderedTally is tally over a sink that may get several events of an aggregate
// at once.
type orderedTally struct{ tally }

// StopsAtFailure implements [relay.OrderedSink].
func (orderedTally) StopsAtFailure() {}

func tallied(s relay.DestinationSink, n *atomic.Int64) waybill.Sink {
	if _, ordered := s.(relay.OrderedSink); ordered {
		return orderedTally{tally{s, n}}
	}
	return tally{s, n}
}

// write commits the next n events, in transactions of 25.
func (d *triple) write(n int) {
	d.Helper()
	for range n / 25 {
		d.add(d.rest[:25]...)
		d.rest = d.rest[25:]
	}
}

// add commits events.
func (d *triple) add(evs ...waybill.Event) {
	d.Helper()
	box, err := outbox.New(d.flow.db, outbox.Config{})
	must(d.T, err)
	must(d.T, box.InTx(d.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }))
	d.written += int64(len(evs))
}

// find returns the counts of a destination.
func (d *triple) find(name string) admin.Destination {
	d.Helper()
	found, err := d.ops.Find(d.Context(), name)
	must(d.T, err)
	return found
}

// split returns the payloads of the stream, and the number of all others.
func (d *triple) split(payloads [][]byte) (ofStream [][]byte, others int) {
	d.Helper()
	for _, payload := range payloads {
		var l letter
		must(d.T, json.Unmarshal(payload, &l))
		if l.Aggregate == "huge" || l.Aggregate == "locked" {
			others++
			continue
		}
		ofStream = append(ofStream, payload)
	}
	return ofStream, others
}

// checkArrivals checks that each broker has every event, in order, and that
// those that were never down have no copy.
func (d *triple) checkArrivals() {
	d.Helper()
	want := len(d.stream.events)
	if len(d.rest) > 0 {
		d.Fatalf("%d events were not written", len(d.rest))
	}
	for name, p := range map[string]place{"rabbit": d.rabbit, "nats": d.nats, "redis": d.redis} {
		payloads, err := p.read(d.Context())
		must(d.T, err)
		ofStream, others := d.split(payloads)
		if n := d.stream.arrived(d.T, ofStream); n != want {
			d.Errorf("%s has %d events, want %d", name, n, want)
		}
		if n := len(ofStream); name != "nats" && n != want {
			d.Errorf("%s has %d messages of %d events", name, n, want)
		}
		if wantOthers := map[string]int{"rabbit": 2, "nats": 1, "redis": 1}[name]; others != wantOthers {
			d.Errorf("%s has %d messages of the two other events, want %d", name, others, wantOthers)
		}
		d.Logf("%s: %d messages", name, len(payloads))
	}
}

// checkNames checks that operators see which destination lacks which event.
func (d *triple) checkNames() {
	d.Helper()
	all, err := d.ops.List(d.Context())
	must(d.T, err)
	for _, to := range all {
		waiting, dead := map[string]int64{"redis": 1}[to.Name], map[string]int64{"nats": 1}[to.Name]
		if to.Waiting() != waiting || to.Dead != dead || to.IsPaused() {
			d.Errorf("%s: %+v, want %d waiting and %d dead", to.Name, to, waiting, dead)
		}
	}
	main, err := admin.NewOutbox(d.flow.db, admin.Config{})
	must(d.T, err)
	for _, want := range []struct {
		ev          waybill.Event
		destination string
		state       store.State
	}{{d.huge, "nats", store.Dead}, {d.locked, "redis", store.Ready}} {
		j, err := main.Journey(d.Context(), want.ev.ID)
		must(d.T, err)
		if len(j.Waiting) != 1 || j.Waiting[0].Destination.Name != want.destination || j.Waiting[0].State != want.state {
			d.Errorf("the journey of event %s: %+v, want it %s at %s", want.ev.Type, j.Waiting, want.state, want.destination)
		}
	}
}

// mend removes both causes, after which the two events arrive.
func (d *triple) mend() {
	d.Helper()
	client, err := d.redis.client()
	must(d.T, err)
	defer func() { _ = client.Close() }()
	must(d.T, client.Del(d.Context(), d.locked.Topic).Err())
	must(d.T, d.ops.Probe(d.Context(), "redis"))
	d.limitNATS(-1)
	letters, err := d.ops.Outbox(d.Context(), "nats")
	must(d.T, err)
	_, err = letters.Replay(d.Context(), d.huge.ID)
	must(d.T, err)
	await(d.T, "nothing waits any more", func() bool { return d.find("redis").Rows() == 0 && d.find("nats").Rows() == 0 })
	if n, err := client.XLen(d.Context(), d.locked.Topic).Result(); err != nil || n != 1 {
		d.Errorf("Redis has %d messages of the topic that it refused: %v", n, err)
	}
	if n := d.received["nats"].Load(); n < d.written {
		d.Errorf("NATS has accepted %d events, want %d", n, d.written)
	}
}
