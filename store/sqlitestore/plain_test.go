package sqlitestore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestPlainInsert inserts from the sqlite3 shell, which may be years older than
// the library: SQLite fills in the defaults, and Fetch reads the rows as if Go
// had written them.
func TestPlainInsert(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	start := time.Now().Truncate(time.Millisecond)
	out, err := shell(t, path, `
INSERT INTO waybill_outbox (type, payload) VALUES ('Short', '{"n":1}');
INSERT INTO waybill_outbox (type, payload, aggregate_type, aggregate_id, tenant_id, topic, schema_version, priority, headers, content_type)
  VALUES ('Long', x'00ff', 'order', 'o-1', 't-1', 'orders', 3, 7, '{"a":"b"}', 'application/octet-stream');
INSERT INTO waybill_outbox (type, payload) VALUES ('Number', 42);
INSERT INTO waybill_outbox (type, payload) VALUES ('Empty', '');
INSERT INTO waybill_outbox (type, payload) SELECT 'Many', '{}' FROM generate_series(1, 200);`)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	end := time.Now()
	rows := fetch(t, db.Driver().Relay)
	if len(rows) != 204 {
		t.Fatalf("%d rows, want 204", len(rows))
	}
	seen := map[waybill.ID]bool{}
	var last waybill.ID
	for i, row := range rows {
		if row.Err != nil {
			t.Errorf("row %d: %v", i, row.Err)
		}
		if seen[row.ID] || row.ID.IsZero() {
			t.Errorf("row %d: the id %s is not new", i, row.ID)
		}
		seen[row.ID] = true
		for name, at := range map[string]time.Time{"id": row.ID.Time(), "created_at": row.CreatedAt, "occurred_at": row.Event.OccurredAt} {
			if at.Before(start) || at.After(end) {
				t.Errorf("row %d: %s says %v, want between %v and %v", i, name, at, start, end)
			}
		}
		if row.ID.Time().Before(last.Time()) {
			t.Errorf("row %d: ids do not follow the time", i)
		}
		last = row.ID
	}
	short, long := rows[0].Event, rows[1].Event
	if short.AggregateType != waybill.GlobalAggregate || short.AggregateID != "" || short.TenantID != "" || short.Topic != "Short" ||
		short.SchemaVersion != 1 || short.Priority != 0 || short.Headers != nil || short.ContentType != waybill.JSON ||
		string(short.Payload) != `{"n":1}` || short.DedupKey != "" || !short.AvailableAt.IsZero() {
		t.Errorf("defaults: %+v", short)
	}
	if long.AggregateType != "order" || long.AggregateID != "o-1" || long.TenantID != "t-1" || long.Topic != "orders" ||
		long.SchemaVersion != 3 || long.Priority != 7 || long.Headers["a"] != "b" || long.ContentType != "application/octet-stream" ||
		string(long.Payload) != "\x00\xff" {
		t.Errorf("given: %+v", long)
	}
	if got := string(rows[2].Event.Payload); got != "42" {
		t.Errorf("a number as payload reads %q", got)
	}
	if p := rows[3].Event.Payload; p == nil || len(p) != 0 {
		t.Errorf("an empty payload reads %#v", p)
	}
}

// TestDocumentedSQL runs the SQLite statements of docs/sql.md in the shell.
func TestDocumentedSQL(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "sql.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql sqlite\n(.*?)```").FindAllSubmatch(doc, -1)
	if len(blocks) == 0 {
		t.Fatal("docs/sql.md shows nothing for SQLite")
	}
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	for _, block := range blocks {
		if out, err := shell(t, path, string(block[1]), "-bail"); err != nil {
			t.Errorf("%v: %s\n%s", err, out, block[1])
		}
	}
	rows := fetch(t, db.Driver().Relay)
	if len(rows) == 0 || rows[0].Err != nil || rows[0].Event.AggregateID == "" {
		t.Errorf("rows: %+v", rows)
	}
}

// TestPlainRefused: rows that could not be read, or would never be delivered,
// cannot be inserted.
func TestPlainRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	for _, row := range []string{
		`(type) VALUES ('NoPayload')`,
		`(payload) VALUES ('{}')`,
		`(type, payload, id) VALUES ('X', '{}', 'not a blob')`,
		`(type, payload, id) VALUES ('X', '{}', '018f3c3c-0000-7000-8000-000000000000')`,
		`(type, payload, id) VALUES ('X', '{}', x'00')`,
		`(type, payload, lane) VALUES ('X', '{}', 1)`,
		`(type, payload, priority) VALUES ('X', '{}', 'high')`,
		`(type, payload, schema_version) VALUES ('X', '{}', NULL)`,
		`(type, payload, occurred_at) VALUES ('X', '{}', '2024-01-01')`,
		`(type, payload, available_at) VALUES ('X', '{}', 'tomorrow')`,
		`(type, payload, headers) VALUES ('X', '{}', x'00')`,
	} {
		if out, err := shell(t, path, `INSERT INTO waybill_outbox `+row+`;`, "-bail"); err == nil {
			t.Errorf("%s was accepted: %s", row, out)
		}
	}
	if n := len(fetch(t, db.Driver().Relay)); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

// TestPlainNotDue: a row with a future time reports that time when it is read,
// and can be deferred; a row with a past time is ready.
func TestPlainNotDue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	future := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
	out, err := shell(t, path, fmt.Sprintf(`INSERT INTO waybill_outbox (type, payload, available_at)
VALUES ('Later', '{}', %d), ('Now', '{}', 1);`, future.UnixMicro()))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rows := fetch(t, db.Driver().Relay)
	if len(rows) != 2 || !rows[0].DueAt.Equal(future) || !rows[0].Event.AvailableAt.Equal(future) {
		t.Fatalf("rows: %+v", rows)
	}
	if !rows[1].DueAt.IsZero() || !rows[1].Event.AvailableAt.IsZero() {
		t.Errorf("a time that has passed: due %v", rows[1].DueAt)
	}
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Minute); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{0}, 1)
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	settled, err := db.Driver().Relay.Settle(t.Context(), driver.Settlement{
		Leases: leases, Retry: []driver.Result{{ID: rows[0].ID, Delay: time.Until(future)}},
	})
	if err != nil || len(settled.Moved) != 1 {
		t.Fatalf("%+v, %v", settled, err)
	}
	if rest := fetch(t, db.Driver().Relay); len(rest) != 1 || rest[0].Event.Type != "Now" {
		t.Errorf("left in outbox: %+v", rest)
	}
	if page, err := db.Driver().Relay.Due(t.Context(), []int{0}, 10); err != nil || len(page.Rows) != 0 {
		t.Errorf("due: %+v, %v", page.Rows, err)
	}
}

// TestSeqIsNeverReused deletes the newest row: its seq must not be used again,
// because a reader remembers its position.
func TestSeqIsNeverReused(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	write(t, box, placed("1"))
	write(t, box, placed("2"))
	newest := fetch(t, db.Driver().Relay)[1].Seq
	if _, err := db.DB().ExecContext(t.Context(), `DELETE FROM waybill_outbox WHERE seq = ?`, newest); err != nil {
		t.Fatal(err)
	}
	write(t, box, placed("3"))
	if got := fetch(t, db.Driver().Relay)[1].Seq; got <= newest {
		t.Errorf("seq %d after %d", got, newest)
	}
}

// TestPlans checks SQLite's plans of the important statements: all use a key or
// an index, and none sorts.
func TestPlans(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	args := make([]any, 400)
	for i := range args {
		args[i] = i
	}
	for name, text := range db.Statements() {
		for _, step := range plan(t, db, text, args) {
			if strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "AUTOMATIC") ||
				strings.HasPrefix(step, "SCAN") && strings.Contains(step, "waybill_") {
				t.Errorf("%s: %s", name, step)
			}
		}
	}
}

// plan returns the steps of SQLite's plan.
func plan(t *testing.T, db *sqlitestore.Store, text string, args []any) []string {
	t.Helper()
	rows, err := db.DB().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}
