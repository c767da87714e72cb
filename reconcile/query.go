package reconcile

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
)

// Queryer runs a query: a [*sql.DB], a connection or a transaction.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Query is a SQL query that returns missing events.
type Query struct {
	// SQL returns one row for each missing event. The columns have the names of
	// the outbox table's columns: type, aggregate_type, aggregate_id,
	// tenant_id, topic, routing_key, schema_id, schema_version, dedup_key,
	// occurred_at, priority, correlation_id, causation_id, headers (a JSON
	// object), content_type, payload. A NULL counts as not returned. Any other
	// name is an error.
	SQL string
	// Args returns the arguments of the query. Defaults to the window's two
	// times, From and To.
	Args func(w Window) []any
	// Event has the fields that all events share and that the query does not
	// return, such as the type.
	Event waybill.Event
}

// readOnly is a [Queryer] that can begin a read-only transaction.
type readOnly interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// QueryFind returns a Find for a [Job] that runs a query. On a [*sql.DB] or a
// connection, the query runs in a read-only transaction that is rolled back, so
// Find changes nothing even if the query is a DELETE that returns rows. In a
// transaction of the caller, the caller decides.
func QueryFind(db Queryer, q Query) func(ctx context.Context, w Window, missing func(waybill.Event) error) error {
	args := q.Args
	if args == nil {
		args = func(w Window) []any { return []any{w.From, w.To} }
	}
	return func(ctx context.Context, w Window, missing func(waybill.Event) error) error {
		db := db
		if reads, ok := db.(readOnly); ok {
			tx, err := reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
			if err != nil {
				return fmt.Errorf("the query: %w", err)
			}
			// SQLite has no read-only transactions
			defer func() { _ = tx.Rollback() }()
			db = tx
		}
		rows, err := db.QueryContext(ctx, q.SQL, args(w)...)
		if err != nil {
			return fmt.Errorf("the query: %w", err)
		}
		defer rows.Close()
		return eachEvent(rows, q.Event, missing)
	}
}

// eachEvent calls missing with the event of each row. The columns override the
// fields of base.
func eachEvent(rows *sql.Rows, base waybill.Event, missing func(waybill.Event) error) error {
	names, err := rows.Columns()
	if err != nil {
		return fmt.Errorf("the query: %w", err)
	}
	values := make([]any, len(names))
	dest := make([]any, len(names))
	for i := range values {
		dest[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return fmt.Errorf("the query: %w", err)
		}
		ev := base
		for i, name := range names {
			if err := setField(&ev, name, values[i]); err != nil {
				return fmt.Errorf("the query: column %s: %w", name, err)
			}
		}
		if err := missing(ev); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("the query: %w", err)
	}
	return nil
}

// setField sets the event's field that the column is named after.
func setField(ev *waybill.Event, column string, value any) (err error) {
	texts := map[string]*string{
		"type": &ev.Type, "aggregate_type": &ev.AggregateType, "aggregate_id": &ev.AggregateID, "tenant_id": &ev.TenantID, "topic": &ev.Topic,
		"routing_key": &ev.RoutingKey, "schema_id": &ev.SchemaID, "dedup_key": &ev.DedupKey, "correlation_id": &ev.CorrelationID,
		"causation_id": &ev.CausationID, "content_type": &ev.ContentType,
	}
	field, isText := texts[column]
	switch {
	case !isText && column != "schema_version" && column != "priority" && column != "occurred_at" && column != "headers" && column != "payload":
		return fmt.Errorf("not a field of an event; rename the column with AS")
	case value == nil:
		return nil
	case isText:
		*field = textOf(value)
	case column == "schema_version":
		ev.SchemaVersion, err = strconv.Atoi(textOf(value))
	case column == "priority":
		ev.Priority, err = strconv.Atoi(textOf(value))
	case column == "occurred_at":
		at, ok := value.(time.Time)
		if !ok {
			return fmt.Errorf("%T is not a time", value)
		}
		ev.OccurredAt = at
	case column == "headers":
		ev.Headers = nil // do not write into the map of q.Event
		err = json.Unmarshal([]byte(textOf(value)), &ev.Headers)
	case column == "payload":
		ev.Payload = []byte(textOf(value))
	}
	return err
}

// textOf returns a driver value as text.
func textOf(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprint(value)
}
