package importing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// River is the table of River's jobs, on PostgreSQL. A job becomes an event:
// its kind is the type, its arguments are the payload.
type River struct {
	// Kinds are the kinds of the jobs.
	Kinds []string
	// Table is the name of the table. Defaults to "river_job".
	Table string
	// Running also selects running jobs: those of workers that crashed.
	Running bool
	// AggregateType and AggregateArg are the aggregate type, and the name of
	// the argument with the aggregate's id. Defaults to no aggregate.
	AggregateType, AggregateArg string
}

// riverColumns are the columns of a job that become headers, by the name of the
// header.
var riverColumns = map[string]string{
	"river_job_id": "id::text", "river_queue": "queue", "river_priority": "priority::text", "river_attempt": "attempt::text", "river_tags": "array_to_string(tags, ',')",
}

// riverWaiting are the states of jobs that wait.
const riverWaiting = "state IN ('available', 'scheduled', 'retryable', 'pending')"

// Plan implements [Layout].
func (v River) Plan(ctx context.Context, db *Database) (*Plan, error) {
	if db.kind != connect.Postgres {
		return nil, errors.New("an import from River needs PostgreSQL")
	}
	if v.Table == "" {
		v.Table = "river_job"
	}
	t, err := db.Table(ctx, v.Table)
	if err != nil {
		return nil, err
	}
	_, err = t.columnsNamed("id", "kind", "args", "state", "metadata", "tags", "queue", "priority", "attempt", "created_at", "scheduled_at", "finalized_at")
	if err != nil {
		return nil, err
	}
	if err := v.check(ctx, db, t); err != nil {
		return nil, err
	}
	p := &Plan{Source: "river", Table: t, ID: "id", Order: "id", Event: v.event, Columns: map[string]string{
		"kind": "kind", "args": "args::text", "metadata": "metadata::text", "created_at": "created_at",
		// A job that is due has no time to wait for. River keeps jobs that it
		// retries within seconds as available.
		"due_at": "CASE WHEN scheduled_at > now() THEN scheduled_at END",
	}}
	for name, column := range riverColumns {
		p.Columns[name] = column
	}
	p.Where = func(bind func(any) string) string {
		marks := make([]string, len(v.Kinds))
		for i, kind := range v.Kinds {
			marks[i] = bind(kind)
		}
		states := riverWaiting
		if v.Running {
			states = "(" + states + " OR state = 'running')"
		}
		return states + " AND kind IN (" + strings.Join(marks, ", ") + ")"
	}
	p.Mark = setMark(db, p, `state = 'cancelled', finalized_at = now(), metadata = metadata || '{"imported_by": "waybill"}'`)
	return p, nil
}

// check returns an error if jobs of the kinds are running, and if a kind is
// probably misspelled.
func (v River) check(ctx context.Context, db *Database, t *Table) error {
	rows, err := db.sql.QueryContext(ctx, "SELECT kind, count(*) FILTER (WHERE state = 'running') FROM "+t.SQL+" GROUP BY kind ORDER BY kind")
	if err != nil {
		return err
	}
	defer rows.Close()
	running := map[string]int{}
	var known []string
	for rows.Next() {
		var kind string
		var n int
		if err := rows.Scan(&kind, &n); err != nil {
			return err
		}
		running[kind] = n
		known = append(known, kind)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, kind := range v.Kinds {
		n, there := running[kind]
		if near := hint.Nearest(kind, known); !there && near != "" {
			return hint.New("did you mean "+near+"?", "table %s has no job of kind %s", t, kind)
		}
		if n > 0 && !v.Running {
			return hint.New("stop the clients of River; --running imports the jobs of workers that crashed", "jobs of kind %s are running: %d", kind, n)
		}
	}
	return nil
}

// event returns the event of a job.
func (v River) event(r *Row) (waybill.Event, error) {
	ev := waybill.Event{Type: r.Text("kind"), AggregateType: v.AggregateType, Payload: []byte(r.Text("args"))}
	var err error
	if ev.Headers, err = flatHeaders(r.Text("metadata")); err != nil {
		return ev, errors.New("metadata: not a JSON object")
	}
	if ev.Headers == nil {
		ev.Headers = map[string]string{}
	}
	for name := range riverColumns {
		if value := r.Text(name); value != "" {
			ev.Headers[name] = value
		}
	}
	if ev.OccurredAt, err = r.Time("created_at"); err != nil {
		return ev, err
	}
	if ev.AvailableAt, err = r.Time("due_at"); err != nil {
		return ev, err
	}
	if v.AggregateArg == "" {
		return ev, nil
	}
	ev.AggregateID, err = argument(ev.Payload, v.AggregateArg)
	return ev, err
}

// argument returns a job's argument as text.
func argument(args []byte, name string) (string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(args, &all); err != nil {
		return "", errors.New("args: not a JSON object")
	}
	var value string
	switch raw := all[name]; {
	case raw == nil || string(raw) == "null":
		return "", fmt.Errorf("args: %s is missing", name)
	case json.Unmarshal(raw, &value) != nil:
		value = string(raw) // a number
	}
	return value, nil
}
