package imports_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/watermillbridge"
	"github.com/waybillhq/waybill/internal/testserver"
)

// forwarderTopic and forwarderGroup are those of the guide.
const (
	forwarderTopic = "forwarder_topic"
	forwarderGroup = "forwarder"
)

// mill is a database with watermill-sql's adapters.
type mill struct {
	*place
	beginner wsql.Beginner
	schema   wsql.SchemaAdapter
	offsets  wsql.OffsetsAdapter
	group    string // none for queues
}

// mills returns the databases and schemas that watermill-sql has.
func mills() map[string]func(t *testing.T) *mill {
	pg := func(t *testing.T) (*place, wsql.Beginner) {
		p := postgres(t)
		pool, err := pgxpool.New(t.Context(), p.dsn)
		p.must(err)
		t.Cleanup(pool.Close)
		return p, wsql.BeginnerFromPgx(pool)
	}
	onMySQL := func(t *testing.T, server string) *mill {
		p := mysqlPlace(t, server)
		return &mill{p, wsql.BeginnerFromStdSQL(p.db), wsql.DefaultMySQLSchema{SubscribeBatchSize: 1}, wsql.DefaultMySQLOffsetsAdapter{}, forwarderGroup}
	}
	return map[string]func(t *testing.T) *mill{
		"postgres": func(t *testing.T) *mill {
			p, b := pg(t)
			return &mill{p, b, wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1}, wsql.DefaultPostgreSQLOffsetsAdapter{}, forwarderGroup}
		},
		"postgres-queue": func(t *testing.T) *mill {
			p, b := pg(t)
			return &mill{p, b, wsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1}, wsql.PostgreSQLQueueOffsetsAdapter{}, ""}
		},
		"mysql":   func(t *testing.T) *mill { return onMySQL(t, testserver.MySQLName) },
		"mariadb": func(t *testing.T) *mill { return onMySQL(t, testserver.MariaDBName) },
		"mysql-queue": func(t *testing.T) *mill {
			m := onMySQL(t, testserver.MySQLName)
			m.schema, m.offsets, m.group = wsql.MySQLQueueSchema{SubscribeBatchSize: 1}, wsql.MySQLQueueOffsetsAdapter{}, ""
			return m
		},
	}
}

// publisher returns the library's publisher.
func (m *mill) publisher() message.Publisher {
	m.Helper()
	pub, err := wsql.NewPublisher(m.beginner, wsql.PublisherConfig{SchemaAdapter: m.schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	m.must(err)
	m.Cleanup(func() { _ = pub.Close() })
	return pub
}

// receive receives messages by the library's subscriber and acknowledges all
// but the last one, which stays undelivered. It returns their payloads.
func (m *mill) receive(topic string, n int) []string {
	m.Helper()
	sub, err := wsql.NewSubscriber(m.beginner, wsql.SubscriberConfig{
		ConsumerGroup: m.group, SchemaAdapter: m.schema, OffsetsAdapter: m.offsets, InitializeSchema: true, PollInterval: 5 * time.Millisecond,
	}, watermill.NopLogger{})
	m.must(err)
	ctx, cancel := context.WithCancel(m.Context())
	defer cancel()
	messages, err := sub.Subscribe(ctx, topic)
	m.must(err)
	var got []string
	for len(got) < n {
		msg, ok := <-messages
		if !ok {
			m.Fatal("the subscriber ended")
		}
		if got = append(got, string(msg.Payload)); len(got) < n {
			msg.Ack()
		}
	}
	cancel()
	m.must(sub.Close())
	return got
}

// told is a message that a service published, and its topic.
type told struct {
	topic string
	*message.Message
}

// eventOf returns the event that watermillbridge makes of the message.
func (m *mill) eventOf(one told) string {
	m.Helper()
	ev, err := watermillbridge.EventOf(one.topic, one.Message)
	m.must(err)
	return line(ev)
}

// line returns what is compared of an event.
func line(ev waybill.Event) string {
	id := ""
	if uuid := ev.Headers["watermill_uuid"]; uuid == ev.ID.String() {
		id = uuid
	}
	return fmt.Sprintf("%s|%s|%s|%s|%s|%s|%x|%s|%s", ev.Type, ev.Topic, strings.TrimPrefix(ev.AggregateType, waybill.GlobalAggregate), ev.AggregateID, ev.TenantID,
		ev.ContentType, ev.Payload, headers(ev), id)
}

// messages returns messages of every form: UUIDs that are Waybill's ids and
// others, JSON and bytes, with and without an aggregate.
func messages(n int) []told {
	var all []told
	for i := range n {
		msg := message.NewMessage(watermill.NewULID(), []byte(numbered(i)))
		if i%2 == 0 {
			msg.UUID = watermill.NewUUID()
		}
		switch i % 5 {
		case 1:
			msg.Metadata.Set("aggregatetype", "order")
			msg.Metadata.Set("aggregateid", fmt.Sprintf("o-%d", i%4))
			msg.Metadata.Set("tenantid", "acme")
		case 2:
			msg.Payload = []byte{0xff, byte(i), 0}
			msg.Metadata.Set("Content-Type", "application/json") // not true
		case 3:
			msg.Metadata.Set("content-type", "text/plain")
			msg.Metadata.Set("correlation_id", fmt.Sprintf("c-%d", i))
		}
		all = append(all, told{[]string{"orders", "invoices"}[i%2], msg})
	}
	return all
}

// TestWatermillForwarder: the guide "From Watermill". The real forwarder's
// publisher has filled the table, a real subscriber has received a part.
func TestWatermillForwarder(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(mills())) {
		t.Run(name, func(t *testing.T) {
			m := mills()[name](t)
			pub := forwarder.NewPublisher(m.publisher(), forwarder.PublisherConfig{ForwarderTopic: forwarderTopic})
			all := messages(40)
			for _, one := range all {
				m.must(pub.Publish(one.topic, one.Message))
			}
			m.receive(forwarderTopic, 8) // 7 are acknowledged
			guide := m.blocks("sh watermill")[0]
			if m.group == "" {
				guide = strings.ReplaceAll(guide, "--consumer-group "+forwarderGroup, "")
			}
			same(m.place, "the output", m.shell(guide), "would import: 33\nimported: 33\nmarked: 33\n")
			var want, got []string
			for _, one := range all[7:] {
				want = append(want, m.eventOf(one))
			}
			for _, ev := range m.listed() {
				got = append(got, line(ev))
			}
			slices.Sort(want)
			slices.Sort(got)
			same(m.place, "the events", strings.Join(got, "\n"), strings.Join(want, "\n"))

			// The forwarder starts again by mistake, and finds what came later.
			late := messages(2)
			for _, one := range late {
				m.must(pub.Publish(one.topic, one.Message))
			}
			if next := m.receive(forwarderTopic, 1)[0]; !strings.Contains(next, late[0].UUID) {
				t.Errorf("the forwarder receives %s, want %s", next, late[0].UUID)
			}
			same(m.place, "messages after the offset", m.report(m.flags()...), report{Waiting: 2, Imported: 2})
			same(m.place, "another import", m.report(append(m.flags(), "--delete")...), report{Waiting: 2, Before: 2, Deleted: 2})
		})
	}
}

// flags returns the arguments of the guide's import.
func (m *mill) flags() []string {
	flags := []string{"watermill", forwarderTopic, "--forwarder"}
	if m.group != "" {
		flags = append(flags, "--consumer-group", m.group)
	}
	return flags
}

// listed delivers all events and returns them. Those of an aggregate must come
// in the order of their payloads.
func (m *mill) listed() []waybill.Event {
	m.Helper()
	var all []waybill.Event
	for aggregate, evs := range m.deliver() {
		if strings.HasPrefix(aggregate, "o-") && !slices.IsSortedFunc(evs, func(x, y waybill.Event) int { return number(x) - number(y) }) {
			m.Errorf("the events of %s are not in order: %s", aggregate, fields(evs, payload))
		}
		all = append(all, evs...)
	}
	return all
}

// number returns the number in an event's payload.
func number(ev waybill.Event) int {
	var p struct{ N int }
	_ = json.Unmarshal(ev.Payload, &p)
	return p.N
}

// TestWatermillTopic: the messages of a topic without the forwarder, in tables
// with names of their own, with the aggregate in another entry.
func TestWatermillTopic(t *testing.T) {
	m := mills()["postgres"](t)
	m.schema = wsql.DefaultPostgreSQLSchema{
		SubscribeBatchSize: 1, GeneratePayloadType: func(string) string { return "BYTEA" },
		GenerateMessagesTableName: func(topic string) string { return topic + "_log" },
	}
	m.offsets = wsql.DefaultPostgreSQLOffsetsAdapter{GenerateMessagesOffsetsTableName: func(topic string) string { return topic + "_read" }}
	pub := m.publisher()
	for i := range 9 {
		msg := message.NewMessage(watermill.NewUUID(), []byte{0xff, byte(i)})
		msg.Metadata.Set("partition_key", fmt.Sprintf("k-%d", i%2))
		m.must(pub.Publish("orders", msg))
	}
	m.receive("orders", 3)
	args := []string{"watermill", "orders", "--table", "orders_log", "--offsets-table", "orders_read", "--aggregate-metadata", "partition_key"}
	same(m.place, "the report", m.report(append(args, "--consumer-group", forwarderGroup)...), report{Waiting: 7, Imported: 7})
	got := m.deliver()
	same(m.place, "k-0", fields(got["k-0"], func(ev waybill.Event) string { return fmt.Sprintf("%s/%s %x", ev.AggregateType, ev.Type, ev.Payload) }),
		"orders/orders ff02, orders/orders ff04, orders/orders ff06, orders/orders ff08")
	same(m.place, "k-1", fields(got["k-1"], func(ev waybill.Event) string { return fmt.Sprintf("%x", ev.Payload) }), "ff03, ff05, ff07")
	for _, c := range []struct{ args, want string }{
		{strings.Join(args, " "), `table public.orders_read has no offset of the consumer group ""; its groups: "forwarder" (hint: use --consumer-group)`},
		{"watermill order", `the database has no table watermill_order`},
		{"watermill orders --table orders_log", `the offsets of topic orders: the database has no table watermill_offsets_orders (hint: name it with --offsets-table`},
		{strings.Join(args, " ") + " --consumer-group forwarder --mark --skip-invalid", `--mark sets an offset: rows that --skip-invalid skips would be behind it`},
		{"watermill x --table waybill_outbox", `table public.waybill_outbox has no column`},
	} {
		if out := m.fails(strings.Fields("import " + c.args)...); !strings.Contains(out, c.want) {
			t.Errorf("%s: %s, want %s", c.args, out, c.want)
		}
	}
	m.must(pub.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("no envelope"))))
	out := m.fails("import", "watermill", "orders", "--table", "orders_log", "--offsets-table", "orders_read", "--consumer-group", "forwarder", "--forwarder")
	if !strings.Contains(out, "row 10: payload: not an envelope of Watermill's forwarder") {
		t.Error(out)
	}
}
