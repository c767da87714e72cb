package importing

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// Debezium is the table of Debezium's outbox event router.
type Debezium struct {
	// Table is the name of the table.
	Table string
	// Order is the order in which the rows were inserted. Defaults to the id.
	Order string
	// After is the id of the last row that the connector has published; the
	// rows behind it are imported. Where is another condition. Both are
	// optional.
	After, Where string
	// Topic is the topic of an event, as route.topic.replacement of the router;
	// "${routedByValue}" is the aggregate type.
	Topic string
	// Columns replace the names of the router's columns: id, aggregatetype,
	// aggregateid, type, payload, timestamp.
	Columns map[string]string
	// Headers are the columns that become headers, by the name of the header.
	Headers map[string]string
}

// DebeziumTopic is the default of the router's route.topic.replacement.
const DebeziumTopic = "outbox.event.${routedByValue}"

// debeziumID is the header that holds the id of a row, which the router passes
// to consumers as the header "id".
const debeziumID = "debezium_id"

// DebeziumColumns returns the names of the router's columns.
func DebeziumColumns() []string {
	return []string{"aggregateid", "aggregatetype", "id", "payload", "timestamp", "type"}
}

// Plan implements [Layout].
func (z Debezium) Plan(ctx context.Context, db *Database) (*Plan, error) {
	t, err := db.Table(ctx, z.Table)
	if err != nil {
		return nil, err
	}
	p := &Plan{Source: "debezium", Table: t, Event: z.event, Columns: map[string]string{}}
	for _, name := range DebeziumColumns() {
		column := z.Columns[name]
		if column == "" && name == "timestamp" {
			continue // the router has no such column unless it is named
		}
		if column == "" {
			column = name
		}
		if p.Columns[name], err = t.Column(column); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(z.Headers)) {
		if p.Columns["header "+name], err = t.Column(z.Headers[name]); err != nil {
			return nil, err
		}
	}
	p.ID, p.Order = p.Columns["id"], p.Columns["id"]
	if z.Order != "" {
		column, err := t.Column(z.Order)
		if err != nil {
			return nil, err
		}
		p.Order = column + ", " + p.ID
	}
	return p, z.cutOff(ctx, db, p)
}

// cutOff selects the rows after the last published one. It fails if that row
// does not exist, because all rows would be imported.
func (z Debezium) cutOff(ctx context.Context, db *Database, p *Plan) error {
	order, _, _ := strings.Cut(p.Order, ", ")
	last := func(column, mark string) string {
		return "(SELECT published." + column + " FROM " + p.Table.SQL + " published WHERE published." + p.ID + " = " + mark + ")"
	}
	p.Where = func(bind func(any) string) string {
		condition := "1 = 1"
		if z.After != "" {
			condition = "(" + order + " > " + last(order, bind(z.After)) +
				" OR " + order + " = " + last(order, bind(z.After)) + " AND " + p.ID + " > " + last(p.ID, bind(z.After)) + ")"
		}
		if z.Where != "" {
			condition += " AND (" + z.Where + ")"
		}
		return condition
	}
	if z.After == "" {
		return nil
	}
	rows, err := db.sql.QueryContext(ctx, "SELECT 1 FROM "+p.Table.SQL+" WHERE "+p.ID+" = "+db.bind(1), z.After)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() && rows.Err() == nil {
		return hint.New("--after is the id of the last published row, which must still be there; --where takes any condition", "table %s has no row %s", p.Table, z.After)
	}
	return rows.Err()
}

// event returns the event of a row.
func (z Debezium) event(r *Row) (waybill.Event, error) {
	ev := waybill.Event{
		Type: r.Text("type"), AggregateType: r.Text("aggregatetype"), AggregateID: r.Text("aggregateid"), Payload: []byte(r.Text("payload")),
		Headers: map[string]string{debeziumID: r.ID},
	}
	if z.Topic != "" {
		ev.Topic = strings.ReplaceAll(z.Topic, "${routedByValue}", ev.AggregateType)
	}
	for name := range z.Headers {
		if column := "header " + name; !r.IsNull(column) {
			ev.Headers[name] = r.Text(column)
		}
	}
	ev.ContentType = contentTypeOf(nil, ev.Payload)
	var err error
	ev.OccurredAt, err = r.Time("timestamp")
	return ev, err
}
