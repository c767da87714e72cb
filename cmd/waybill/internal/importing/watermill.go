package importing

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// Watermill is a topic of watermill-sql: its table of messages and, unless the
// table is a queue, the offset of a consumer group. Both schemas of the library
// are known, on PostgreSQL and on MySQL. Events are those that
// watermillbridge.EventOf makes of the messages.
type Watermill struct {
	// Topic is the topic of the messages.
	Topic string
	// Group is the consumer group whose offset separates the messages that are
	// delivered from those that are not.
	Group string
	// Forwarder: the messages are envelopes of Watermill's forwarder.
	Forwarder bool
	// Aggregate is a metadata entry that has the aggregate's id, besides
	// "aggregateid". Optional.
	Aggregate string
	// Table and Offsets are the names of the tables. They default to those of
	// watermill-sql.
	Table, Offsets string
}

// watermillUUID is the header that holds the UUID of a Watermill message, as in
// package watermillbridge.
const watermillUUID = "watermill_uuid"

// message is a Watermill message. Its tags are those of the envelope.
type message struct {
	Topic    string            `json:"destination_topic"`
	UUID     string            `json:"uuid"`
	Payload  []byte            `json:"payload"`
	Metadata map[string]string `json:"metadata"`
}

// Plan implements [Layout].
func (w Watermill) Plan(ctx context.Context, db *Database) (*Plan, error) {
	if db.kind == connect.SQLite {
		return nil, errors.New("an import from Watermill needs PostgreSQL, MySQL or MariaDB")
	}
	if w.Table == "" {
		w.Table = "watermill_" + w.Topic
	}
	if w.Offsets == "" {
		w.Offsets = "watermill_offsets_" + w.Topic
	}
	t, err := db.Table(ctx, w.Table)
	if err != nil {
		return nil, err
	}
	p := &Plan{Source: "watermill", Table: t, Event: w.event}
	if p.Columns, err = t.columnsNamed("offset", "uuid", "payload", "metadata", "created_at"); err != nil {
		return nil, err
	}
	p.ID, p.Order = p.Columns["offset"], p.Columns["offset"]
	switch acked, queue := t.Column("acked"); {
	case queue == nil:
		p.Where = func(func(any) string) string { return "NOT " + acked }
		p.Mark = setMark(db, p, acked+" = TRUE")
		return p, nil
	case t.Has("transaction_id"):
		return p, w.followTransactions(ctx, db, p)
	}
	return p, w.followOffset(ctx, db, p)
}

// followOffset selects the messages behind the group's offset (MySQL).
func (w Watermill) followOffset(ctx context.Context, db *Database, p *Plan) error {
	offsets, found, err := w.offsets(ctx, db, "offset_acked", "offset_consumed")
	if err != nil || !found {
		return err
	}
	p.Where = func(bind func(any) string) string {
		return p.ID + " > coalesce((SELECT offset_acked FROM " + offsets.SQL + " WHERE consumer_group = " + bind(w.Group) + "), 0)"
	}
	p.MarksAll = true
	p.Mark = func(ctx context.Context, tx *sql.Tx, rows []*Row) error {
		last := rows[len(rows)-1].key
		_, err := tx.ExecContext(ctx, "INSERT INTO "+offsets.SQL+" (consumer_group, offset_acked, offset_consumed) VALUES (?, ?, ?) "+
			"ON DUPLICATE KEY UPDATE offset_acked = VALUES(offset_acked), offset_consumed = VALUES(offset_consumed)", w.Group, last, last)
		return err
	}
	return nil
}

// followTransactions selects the messages behind the group's transaction and
// offset (PostgreSQL).
func (w Watermill) followTransactions(ctx context.Context, db *Database, p *Plan) error {
	p.Columns["transaction_id"] = "transaction_id::text"
	p.Order = "transaction_id, " + p.ID
	offsets, found, err := w.offsets(ctx, db, "offset_acked", "last_processed_transaction_id")
	if err != nil || !found {
		return err
	}
	p.Where = func(bind func(any) string) string {
		return "(transaction_id, " + p.ID + ") > (SELECT coalesce(max(last_processed_transaction_id::text), '0')::xid8, coalesce(max(offset_acked), 0) FROM " +
			offsets.SQL + " WHERE consumer_group = " + bind(w.Group) + ")"
	}
	p.MarksAll = true
	p.Mark = func(ctx context.Context, tx *sql.Tx, rows []*Row) error {
		last := rows[len(rows)-1]
		_, err := tx.ExecContext(ctx, "INSERT INTO "+offsets.SQL+" (consumer_group, offset_acked, last_processed_transaction_id) VALUES ($1, $2, $3::text::xid8) "+
			"ON CONFLICT (consumer_group) DO UPDATE SET offset_acked = excluded.offset_acked, last_processed_transaction_id = excluded.last_processed_transaction_id",
			w.Group, last.key, last.Text("transaction_id"))
		return err
	}
	return nil
}

// offsets returns the table of offsets, and whether there is one. A group
// without an offset in a table with others is an error, because all messages
// would be imported.
func (w Watermill) offsets(ctx context.Context, db *Database, columns ...string) (t *Table, found bool, err error) {
	t, err = db.Table(ctx, w.Offsets)
	if err != nil {
		if hint.Of(err) == "" {
			return nil, false, err
		}
		return nil, false, hint.New("name it with --offsets-table; Watermill creates it when a subscriber starts", "the offsets of topic %s: %w", w.Topic, err)
	}
	if _, err := t.columnsNamed(append(columns, "consumer_group")...); err != nil {
		return nil, false, err
	}
	rows, err := db.sql.QueryContext(ctx, "SELECT consumer_group FROM "+t.SQL+" ORDER BY 1")
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	var groups []string
	for rows.Next() {
		var group string
		if err := rows.Scan(&group); err != nil {
			return nil, false, err
		}
		groups = append(groups, fmt.Sprintf("%q", group))
		found = found || group == w.Group
	}
	if err := rows.Err(); err != nil {
		return nil, false, err
	}
	if !found && len(groups) > 0 {
		return nil, false, hint.New("use --consumer-group", "table %s has no offset of the consumer group %q; its groups: %s", t, w.Group, names(groups))
	}
	return t, true, nil
}

// event returns the event of a message.
func (w Watermill) event(r *Row) (waybill.Event, error) {
	m := message{Topic: w.Topic, UUID: r.Text("uuid"), Payload: []byte(r.Text("payload"))}
	if text := r.Text("metadata"); text != "" {
		if err := json.Unmarshal([]byte(text), &m.Metadata); err != nil {
			return waybill.Event{}, errors.New("metadata: not a JSON object of texts")
		}
	}
	if w.Forwarder {
		m = message{}
		if err := json.Unmarshal([]byte(r.Text("payload")), &m); err != nil || m.Topic == "" {
			return waybill.Event{}, errors.New("payload: not an envelope of Watermill's forwarder")
		}
	}
	ev := m.event(w.Aggregate)
	var err error
	ev.OccurredAt, err = r.Time("created_at")
	return ev, err
}

// event returns the event that watermillbridge.EventOf makes of a message
// without the metadata of an event.
func (m message) event(aggregate string) waybill.Event {
	ev := waybill.Event{Type: m.Topic, Topic: m.Topic, Payload: m.Payload, Headers: map[string]string{}}
	ev.ContentType = contentTypeOf(m.Metadata, m.Payload)
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		value := m.Metadata[name]
		if name == "content-type" && value == ev.ContentType {
			continue
		}
		ev.Headers[name] = value
		switch strings.ToLower(name) {
		case "aggregatetype":
			ev.AggregateType = value
		case "aggregateid":
			ev.AggregateID = value
		case "tenantid":
			ev.TenantID = value
		}
	}
	if value := m.Metadata[aggregate]; aggregate != "" && value != "" {
		ev.AggregateID = value
		if ev.AggregateType == "" {
			ev.AggregateType = m.Topic
		}
	}
	if m.UUID != "" {
		ev.Headers[watermillUUID] = m.UUID
	}
	if id, err := waybill.ParseID(m.UUID); err == nil {
		ev.ID = id
	}
	return ev
}

// contentTypeOf returns the content type of the metadata if the payload
// conforms to it.
func contentTypeOf(metadata map[string]string, payload []byte) string {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(metadata))) { // the lower-case name takes precedence
		given := metadata[name]
		if !strings.EqualFold(name, "content-type") || given == "" || broker.IsStructured(given) {
			continue
		}
		if (waybill.Event{Type: "any", ContentType: given, Payload: payload}).Validate() == nil {
			return given
		}
	}
	if json.Valid(payload) {
		return waybill.JSON
	}
	return "application/octet-stream"
}
