package sqlitestore_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestQueryFind: a query's columns become the fields of events, and an unknown
// column is rejected by name.
func TestQueryFind(t *testing.T) {
	db := openAt(t, filepath.Join(t.TempDir(), "query.db"), sqlitestore.Config{}).DB()
	w := reconcile.Window{From: time.Unix(100, 0), To: time.Unix(200, 0)}
	find := func(q reconcile.Query) (list []waybill.Event, err error) {
		q.Args = func(w reconcile.Window) []any { return []any{w.From.Unix(), w.To.Unix()} }
		err = reconcile.QueryFind(db, q)(t.Context(), w, func(ev waybill.Event) error {
			list = append(list, ev)
			return nil
		})
		return list, err
	}
	shared := waybill.Event{Type: "Shared", Topic: "topic", Headers: map[string]string{"a": "1"}, Priority: 3}
	list, err := find(reconcile.Query{Event: shared, SQL: `WITH rows(at) AS (VALUES (99), (100), (199), (200))
SELECT at AS aggregate_id, 'agg' AS aggregate_type, 'key:' || at AS dedup_key, 'tenant' AS tenant_id, 2 AS schema_version, 7 AS priority,
 NULL AS topic, '{"b":"2"}' AS headers, CAST('{"at":' || at || '}' AS BLOB) AS payload FROM rows WHERE at >= ? AND at < ? ORDER BY at`})
	if err != nil || len(list) != 2 {
		t.Fatalf("the query found %d, %v", len(list), err)
	}
	got := list[1]
	if got.Type != "Shared" || got.AggregateID != "199" || got.AggregateType != "agg" || got.DedupKey != "key:199" || got.TenantID != "tenant" ||
		got.SchemaVersion != 2 || got.Priority != 7 || got.Topic != "topic" || len(got.Headers) != 1 || got.Headers["b"] != "2" || string(got.Payload) != `{"at":199}` {
		t.Errorf("the event is %+v", got)
	}
	if len(shared.Headers) != 1 || shared.Headers["a"] != "1" {
		t.Errorf("the shared event has changed: %+v", shared)
	}
	for query, want := range map[string]string{
		`SELECT 1 AS agregate_id WHERE ? < ?`:     "column agregate_id: not a field of an event",
		`SELECT 'x' AS priority WHERE ? < ?`:      "column priority",
		`SELECT 5 AS occurred_at WHERE ? < ?`:     "column occurred_at: int64 is not a time",
		`SELECT 'no' AS headers WHERE ? < ?`:      "column headers",
		`SELECT * FROM missing WHERE a > ? AND ?`: "no such table",
	} {
		if _, err := find(reconcile.Query{SQL: query}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}
