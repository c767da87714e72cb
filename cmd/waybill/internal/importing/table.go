package importing

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// OwnTable is the outbox table of a service. The fields of OwnTable are names
// of columns or SQL expressions.
type OwnTable struct {
	// Table is the name of the table.
	Table string
	// ID identifies a row.
	ID string
	// Order is the order of the rows. Defaults to ID.
	Order string
	// Where selects the rows that are not delivered. Defaults to all rows.
	Where string
	// Set marks a row as delivered: the text of an UPDATE after SET. Optional.
	Set string
	// Columns are the expressions of the event's fields, by the field's name.
	// type and payload are required.
	Columns map[string]string
}

// setters set the fields of an event from a row's columns of the same name.
var setters = map[string]func(ev *waybill.Event, r *Row, name string) error{
	"type":           text(func(ev *waybill.Event) *string { return &ev.Type }),
	"aggregate_type": text(func(ev *waybill.Event) *string { return &ev.AggregateType }),
	"aggregate_id":   text(func(ev *waybill.Event) *string { return &ev.AggregateID }),
	"tenant_id":      text(func(ev *waybill.Event) *string { return &ev.TenantID }),
	"topic":          text(func(ev *waybill.Event) *string { return &ev.Topic }),
	"routing_key":    text(func(ev *waybill.Event) *string { return &ev.RoutingKey }),
	"schema_id":      text(func(ev *waybill.Event) *string { return &ev.SchemaID }),
	"correlation_id": text(func(ev *waybill.Event) *string { return &ev.CorrelationID }),
	"causation_id":   text(func(ev *waybill.Event) *string { return &ev.CausationID }),
	"content_type":   text(func(ev *waybill.Event) *string { return &ev.ContentType }),
	"schema_version": number(func(ev *waybill.Event) *int { return &ev.SchemaVersion }),
	"priority":       number(func(ev *waybill.Event) *int { return &ev.Priority }),
	"payload": func(ev *waybill.Event, r *Row, name string) error {
		ev.Payload = []byte(r.Text(name))
		return nil
	},
	"headers": func(ev *waybill.Event, r *Row, name string) (err error) {
		ev.Headers, err = flatHeaders(r.Text(name))
		return err
	},
	"created_at": func(ev *waybill.Event, r *Row, name string) (err error) {
		ev.OccurredAt, err = r.Time(name)
		return err
	},
	"available_at": func(ev *waybill.Event, r *Row, name string) (err error) {
		ev.AvailableAt, err = r.Time(name)
		return err
	},
}

// Fields returns the names of the fields that columns of a table can fill.
func Fields() []string { return slices.Sorted(maps.Keys(setters)) }

func text(field func(ev *waybill.Event) *string) func(ev *waybill.Event, r *Row, name string) error {
	return func(ev *waybill.Event, r *Row, name string) error {
		*field(ev) = r.Text(name)
		return nil
	}
}

func number(field func(ev *waybill.Event) *int) func(ev *waybill.Event, r *Row, name string) error {
	return func(ev *waybill.Event, r *Row, name string) error {
		if r.IsNull(name) {
			return nil
		}
		n, err := strconv.Atoi(r.Text(name))
		if err != nil {
			return fmt.Errorf("%s: not a whole number", name)
		}
		*field(ev) = n
		return nil
	}
}

// flatHeaders reads headers from a JSON object. Values that are not texts
// become their JSON.
func flatHeaders(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("headers: not a JSON object")
	}
	out := make(map[string]string, len(all))
	for name, raw := range all {
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		out[name] = value
	}
	return out, nil
}

// Plan implements [Layout].
func (o OwnTable) Plan(ctx context.Context, db *Database) (*Plan, error) {
	t, err := db.Table(ctx, o.Table)
	if err != nil {
		return nil, err
	}
	p := &Plan{Source: "table", Table: t, Columns: map[string]string{}}
	if p.ID, err = t.Expression(o.ID); err != nil {
		return nil, err
	}
	if p.Order, err = t.order(o.Order); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Columns)) {
		if setters[name] == nil {
			advice := "fields: " + strings.Join(Fields(), ", ")
			if near := hint.Nearest(name, Fields()); near != "" {
				advice = "did you mean " + near + "?"
			}
			return nil, hint.New(advice, "an event has no field %s", name)
		}
		if p.Columns[name], err = t.Expression(o.Columns[name]); err != nil {
			return nil, err
		}
	}
	if o.Where != "" {
		p.Where = func(func(any) string) string { return o.Where }
	}
	if o.Set != "" {
		p.Mark = setMark(db, p, o.Set)
	}
	p.Event = func(r *Row) (waybill.Event, error) {
		var ev waybill.Event
		for _, name := range slices.Sorted(maps.Keys(p.Columns)) {
			if err := setters[name](&ev, r, name); err != nil {
				return ev, err
			}
		}
		return ev, nil
	}
	return p, nil
}

// order returns the SQL of a list of columns or expressions. A list with
// parentheses or quotes is taken as it is.
func (t *Table) order(list string) (string, error) {
	if strings.ContainsAny(list, "()'`\"") {
		return list, nil
	}
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		name, direction, _ := strings.Cut(strings.TrimSpace(part), " ")
		if name == "" {
			continue
		}
		column, err := t.Expression(name)
		if err != nil {
			return "", err
		}
		out = append(out, strings.TrimSpace(column+" "+direction))
	}
	return strings.Join(out, ", "), nil
}

// setMark marks rows by an UPDATE.
func setMark(db *Database, p *Plan, set string) func(ctx context.Context, tx *sql.Tx, rows []*Row) error {
	return func(ctx context.Context, tx *sql.Tx, rows []*Row) error {
		return execIn(ctx, tx, db, "UPDATE "+p.Table.SQL+" SET "+set+" WHERE ", p.ID, rows)
	}
}

// execIn runs a statement whose condition is the rows' ids.
func execIn(ctx context.Context, tx *sql.Tx, db *Database, statement, id string, rows []*Row) error {
	args := make([]any, len(rows))
	for i, r := range rows {
		args[i] = r.key
	}
	_, err := tx.ExecContext(ctx, statement+db.in(id, 1, len(args)), args...)
	return err
}
