package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/pulsarbroker"
	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/testserver"
)

// newTopic returns an unused name.
func newTopic() string { return "bench-" + waybill.NewID().String() }

// codecFor returns the message format of a broker's sink.
func codecFor(b broker.Binding, topic string) (*broker.Codec, error) {
	return broker.NewCodec(b, broker.CodecConfig{Topics: broker.OneTopic(topic)})
}

func nothing(context.Context) error { return nil }

func natsLane() lane {
	return lane{name: "nats", events: 100_000, confirms: "JetStream, in this process, default sync", open: func(ctx context.Context) (*brokerField, error) {
		dir, err := os.MkdirTemp("", "bench-nats-")
		if err != nil {
			return nil, err
		}
		embedded, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		embedded.Start()
		if !embedded.ReadyForConnections(time.Minute) {
			return nil, errors.New("the NATS server does not start")
		}
		b, err := natsbroker.Open(ctx, embedded.ClientURL(), natsbroker.Config{
			Stream: "bench", Create: true, Subjects: []string{"bench.>"},
		})
		if err != nil {
			return nil, err
		}
		sink, err := b.Sink(natsbroker.SinkConfig{Topics: broker.OneTopic("bench.events")})
		if err != nil {
			return nil, err
		}
		conn, err := nats.Connect(embedded.ClientURL())
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(16<<10))
		if err != nil {
			return nil, err
		}
		codec, err := codecFor(broker.NATS, "bench.events")
		if err != nil {
			return nil, err
		}
		return &brokerField{
			sink: sink, codec: codec,
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				return func(_ context.Context, batch []broker.Message) error { return publishNATS(js, batch) }, nil
			},
			reset: func(ctx context.Context) error {
				s, err := js.Stream(ctx, "bench")
				if err != nil {
					return err
				}
				return s.Purge(ctx)
			},
			close: func() {
				conn.Close()
				_ = b.Close()
				embedded.Shutdown()
				embedded.WaitForShutdown()
				_ = os.RemoveAll(dir)
			},
		}, nil
	}}
}

func publishNATS(js jetstream.JetStream, batch []broker.Message) error {
	acks := make([]jetstream.PubAckFuture, len(batch))
	for i := range batch {
		m := &batch[i]
		msg := &nats.Msg{Subject: m.Topic, Header: make(nats.Header, len(m.Headers)+1), Data: m.Payload}
		for _, h := range m.Headers {
			msg.Header[h.Name] = []string{h.Value}
		}
		msg.Header[jetstream.MsgIDHeader] = []string{m.PublishID}
		var err error
		if acks[i], err = js.PublishMsgAsync(msg); err != nil {
			return err
		}
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		}
	}
	return nil
}

func redisLane() lane {
	return lane{name: "redis", events: 100_000, server: testserver.RedisName, confirms: "XADD, pipelined", open: func(ctx context.Context) (*brokerField, error) {
		address, topic := os.Getenv(testserver.EnvRedis), newTopic()
		b, err := redisbroker.Open(ctx, address, redisbroker.Config{})
		if err != nil {
			return nil, err
		}
		sink, err := b.Sink(redisbroker.SinkConfig{Topics: broker.OneTopic(topic)})
		if err != nil {
			return nil, err
		}
		opts, err := redis.ParseURL(address)
		if err != nil {
			return nil, err
		}
		client := redis.NewClient(opts)
		codec, err := codecFor(broker.Redis, topic)
		reset := func(ctx context.Context) error { return client.Del(ctx, topic).Err() }
		return &brokerField{
			sink: sink, codec: codec, reset: reset,
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				return func(ctx context.Context, batch []broker.Message) error {
					pipe := client.Pipeline()
					for i := range batch {
						m := &batch[i]
						values := make([]any, 0, 2*len(m.Headers)+4)
						for _, h := range m.Headers {
							values = append(values, h.Name, h.Value)
						}
						pipe.XAdd(ctx, &redis.XAddArgs{Stream: m.Topic, Values: append(values, "publish_id", m.PublishID, "data", m.Payload)})
					}
					_, err := pipe.Exec(ctx)
					return err
				}, nil
			},
			close: func() {
				_ = reset(context.WithoutCancel(ctx))
				_ = client.Close()
				_ = b.Close()
			},
		}, err
	}}
}

func rabbitLane() lane {
	return lane{name: "rabbitmq", events: 20_000, server: testserver.RabbitMQName, confirms: "persistent, mandatory, confirmed; one classic queue", open: func(ctx context.Context) (*brokerField, error) {
		address, topic := os.Getenv(testserver.EnvRabbitMQ), newTopic()
		b, err := rabbitbroker.Open(ctx, address, rabbitbroker.Config{})
		if err != nil {
			return nil, err
		}
		sink, err := b.Sink(rabbitbroker.SinkConfig{Topics: broker.OneTopic(topic), ToQueues: true, Create: true})
		if err != nil {
			return nil, err
		}
		conn, err := amqp.Dial(address)
		if err != nil {
			return nil, err
		}
		admin, err := conn.Channel()
		if err != nil {
			return nil, err
		}
		if _, err := admin.QueueDeclare(topic, true, false, false, false, nil); err != nil {
			return nil, err
		}
		codec, err := codecFor(broker.AMQP, topic)
		return &brokerField{
			sink: sink, codec: codec,
			reset: func(context.Context) error {
				_, err := admin.QueuePurge(topic, false)
				return err
			},
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				ch, err := conn.Channel()
				if err != nil {
					return nil, err
				}
				return func(ctx context.Context, batch []broker.Message) error { return publishRabbit(ctx, ch, batch) }, ch.Confirm(false)
			},
			close: func() {
				_, _ = admin.QueueDelete(topic, false, false, false)
				_ = conn.Close()
				_ = b.Close()
			},
		}, err
	}}
}

func publishRabbit(ctx context.Context, ch *amqp.Channel, batch []broker.Message) error {
	confirms := make([]*amqp.DeferredConfirmation, len(batch))
	for i := range batch {
		m := &batch[i]
		headers := make(amqp.Table, len(m.Headers))
		for _, h := range m.Headers {
			headers[h.Name] = h.Value
		}
		var err error
		confirms[i], err = ch.PublishWithDeferredConfirm("", m.Topic, true, false, amqp.Publishing{
			Headers: headers, ContentType: m.ContentType, DeliveryMode: amqp.Persistent, MessageId: m.PublishID, Timestamp: m.ID.Time(), Body: m.Payload,
		})
		if err != nil {
			return err
		}
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("not confirmed"))
		}
	}
	return nil
}

func kafkaLane() lane {
	return lane{name: "kafka", events: 200_000, server: testserver.KafkaName, confirms: "acks=all, idempotent producer; 3 partitions", open: func(ctx context.Context) (*brokerField, error) {
		address, topic := os.Getenv(testserver.EnvKafka), newTopic()
		// Lingering delays the confirmation of a batch, so both linger for the
		// same time.
		client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(5*time.Millisecond))
		if err != nil {
			return nil, err
		}
		admin := kadm.NewClient(client)
		if made, err := admin.CreateTopics(ctx, 3, 1, nil, topic); err != nil || made.Error() != nil {
			return nil, errors.Join(err, made.Error())
		}
		b, err := kafkabroker.Open(ctx, "kafka://"+address, kafkabroker.Config{})
		if err != nil {
			return nil, err
		}
		sink, err := b.Sink(kafkabroker.SinkConfig{Topics: broker.OneTopic(topic)})
		if err != nil {
			return nil, err
		}
		codec, err := codecFor(broker.Kafka, topic)
		return &brokerField{
			sink: sink, codec: codec, reset: nothing,
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				return func(ctx context.Context, batch []broker.Message) error {
					records := make([]*kgo.Record, len(batch))
					for i := range batch {
						m := &batch[i]
						records[i] = &kgo.Record{Topic: m.Topic, Key: []byte(m.Key), Value: m.Payload}
						for _, h := range m.Headers {
							records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
						}
						records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: broker.HeaderPublishID, Value: []byte(m.PublishID)})
					}
					return client.ProduceSync(ctx, records...).FirstErr()
				}, nil
			},
			close: func() {
				_, _ = admin.DeleteTopics(context.WithoutCancel(ctx), topic)
				client.Close()
				_ = b.Close()
			},
		}, err
	}}
}

func pulsarLane() lane {
	return lane{name: "pulsar", events: 20_000, server: testserver.PulsarName, confirms: "stored, each message by itself", open: func(ctx context.Context) (*brokerField, error) {
		address, topic := os.Getenv(testserver.EnvPulsar), newTopic()
		b, err := pulsarbroker.Open(ctx, address, pulsarbroker.Config{})
		if err != nil {
			return nil, err
		}
		sink, err := b.Sink(pulsarbroker.SinkConfig{Topics: broker.OneTopic(topic)})
		if err != nil {
			return nil, err
		}
		client, err := pulsar.NewClient(pulsar.ClientOptions{URL: address, Logger: log.DefaultNopLogger(), MetricsRegisterer: prometheus.NewRegistry()})
		if err != nil {
			return nil, err
		}
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
		if err != nil {
			return nil, err
		}
		codec, err := codecFor(broker.Pulsar, topic)
		return &brokerField{
			sink: sink, codec: codec, reset: nothing,
			byHand: func() (func(context.Context, []broker.Message) error, error) {
				return func(ctx context.Context, batch []broker.Message) error { return publishPulsar(ctx, producer, batch) }, nil
			},
			close: func() {
				producer.Close()
				client.Close()
				_ = b.Close()
			},
		}, err
	}}
}

func publishPulsar(ctx context.Context, p pulsar.Producer, batch []broker.Message) error {
	errs := make([]error, len(batch))
	var all sync.WaitGroup
	all.Add(len(batch))
	for i := range batch {
		m := &batch[i]
		properties := make(map[string]string, len(m.Headers)+1)
		for _, h := range m.Headers {
			properties[h.Name] = h.Value
		}
		properties[broker.HeaderPublishID] = m.PublishID
		p.SendAsync(ctx, &pulsar.ProducerMessage{Payload: m.Payload, Key: m.Key, Properties: properties}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			errs[i] = err
			all.Done()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pulsar: %w", err)
	}
	return nil
}
