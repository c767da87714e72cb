package main

import (
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// watermill-sql has two schemas. The log keeps all rows and advances an offset
// for each consumer group; the queue marks or deletes rows. Both deliver one
// message at a time and continue after its acknowledgment; a batch is one
// transaction.

// watermillTopic names the tables.
const watermillTopic = "orders"

// watermillSettings configures a subscriber.
type watermillSettings struct {
	name    string
	queue   bool
	batch   int           // 0: the default, 100
	polling time.Duration // 0: the default, 1 s
}

var (
	watermillUsual      = watermillSettings{name: "watermill, default"}
	watermillTuned      = watermillSettings{name: "watermill, tuned", batch: 1000, polling: 5 * time.Millisecond}
	watermillQueueUsual = watermillSettings{name: "watermill queue, default", queue: true}
	watermillQueueTuned = watermillSettings{name: "watermill queue, tuned", queue: true, batch: 1000, polling: 5 * time.Millisecond}
)

func (w watermillSettings) schema() wsql.SchemaAdapter {
	if w.queue {
		return wsql.PostgreSQLQueueSchema{SubscribeBatchSize: w.batch}
	}
	return wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: w.batch}
}

func (w watermillSettings) offsets() wsql.OffsetsAdapter {
	if w.queue {
		return wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}
	}
	return wsql.DefaultPostgreSQLOffsetsAdapter{}
}

func (w watermillSettings) subscriber(f *field) (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromPgx(f.pool), wsql.SubscriberConfig{
		SchemaAdapter: w.schema(), OffsetsAdapter: w.offsets(), PollInterval: w.polling, InitializeSchema: true,
	}, watermill.NopLogger{})
}

// watermillField is a fresh schema with watermill's tables.
func (s *pgServer) watermillField(ctx context.Context, w watermillSettings) (*field, error) {
	f, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := w.subscriber(f)
	if err != nil {
		return nil, err
	}
	return f, sub.SubscribeInitialize(watermillTopic)
}

func newWatermillMessage(n int) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), numbered(n))
	m.Metadata.Set("aggregate", strconv.Itoa(n%aggregates))
	return m
}

func (s *pgServer) watermillLogDrainers() []drainer {
	return s.watermillDrainers(kept, watermillUsual, watermillTuned)
}

func (s *pgServer) watermillQueueDrainers() []drainer {
	return s.watermillDrainers(dropped, watermillQueueUsual, watermillQueueTuned)
}

func (s *pgServer) watermillDrainers(group string, settings ...watermillSettings) []drainer {
	var list []drainer
	for _, w := range settings {
		list = append(list, drainer{name: w.name, group: group, role: rolePeer, open: func(ctx context.Context) (*stage, error) {
			f, err := s.watermillField(ctx, w)
			if err != nil {
				return nil, err
			}
			left := `SELECT count(*) FROM watermill_orders WHERE "offset" > (SELECT max(offset_acked) FROM watermill_offsets_orders)`
			if w.queue {
				left = `SELECT count(*) FROM watermill_orders`
			}
			return &stage{
				load: func(ctx context.Context, n int) error { return w.load(ctx, f, n) },
				calm: f.calm, gauge: f.gauge, close: f.close, statements: f.statements(), left: f.counting(left),
				drain: func(ctx context.Context, l *ledger) error { return w.drain(ctx, f, l) },
			}, nil
		}})
	}
	return list
}

func (w watermillSettings) load(ctx context.Context, f *field, n int) error {
	pub, err := wsql.NewPublisher(wsql.BeginnerFromPgx(f.pool), wsql.PublisherConfig{SchemaAdapter: w.schema()}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for from := 0; from < n && ctx.Err() == nil; from += loadBatch {
		var batch []*message.Message
		for i := from; i < min(from+loadBatch, n); i++ {
			batch = append(batch, newWatermillMessage(i))
		}
		if err := pub.Publish(watermillTopic, batch...); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (w watermillSettings) drain(ctx context.Context, f *field, l *ledger) error {
	sub, err := w.subscriber(f)
	if err != nil {
		return err
	}
	l.start = time.Now()
	messages, err := sub.Subscribe(context.WithoutCancel(ctx), watermillTopic)
	if err != nil {
		return err
	}
	go consume(messages, l.handle)
	err = allHandled(ctx, l)
	if err == nil {
		acked := `SELECT offset_acked = (SELECT max("offset") FROM watermill_orders) FROM watermill_offsets_orders`
		if w.queue {
			acked = `SELECT NOT EXISTS (SELECT FROM watermill_orders)`
		}
		err = f.until(ctx, acked)
	}
	l.stop()
	if closing := sub.Close(); err == nil {
		err = closing
	}
	return err
}

// consume handles messages until there are no more.
func consume(messages <-chan *message.Message, handle func(payload []byte)) {
	for m := range messages {
		handle(m.Payload)
		m.Ack()
	}
}
