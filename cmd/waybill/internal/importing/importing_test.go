package importing_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/importing"
	"github.com/waybillhq/waybill/internal/testserver"
)

// TestOwnTable: every field of an event comes from its column, in the order of
// the table.
func TestOwnTable(t *testing.T) {
	onStores(t, func(b *bed) {
		timestamp, blob := "varchar(40)", "blob"
		switch b.st.Kind {
		case connect.Postgres:
			timestamp, blob = "timestamptz", "bytea"
		case connect.MySQL:
			timestamp = "datetime(6)"
		}
		b.exec("CREATE TABLE " + b.sql + " (id varchar(36) PRIMARY KEY, created " + timestamp + " NOT NULL, due " + timestamp + ", kind varchar(40), about varchar(40), " +
			"tenant varchar(40), head varchar(200), media varchar(40), urgency int, data " + blob + ")")
		insert := "INSERT INTO " + b.sql + " (id, created, due, kind, about, tenant, head, media, urgency, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
		at := func(second int) string { return fmt.Sprintf("2026-03-01 12:00:%02d.250000", second) }
		if b.st.Kind == connect.Postgres {
			at = func(second int) string { return fmt.Sprintf("2026-03-01 14:00:%02d.250000+02:00", second) }
		}
		b.exec(insert, "z", at(1), nil, "OrderPlaced", "17", "acme", `{"trace": "t-1", "retries": 3}`, nil, nil, []byte(`{"total": 1}`))
		b.exec(insert, "a", at(2), "2999-01-01 00:00:00", "OrderPaid", "17", nil, nil, "application/octet-stream", 7, []byte{0xff, 0x00})
		b.exec(insert, "m", at(2), nil, "Greeted", nil, nil, nil, nil, nil, []byte(`{}`))
		layout := importing.OwnTable{Table: b.table, ID: "id", Order: "created, id", Columns: map[string]string{
			"type": "kind", "aggregate_type": "'order'", "aggregate_id": "about", "tenant_id": "tenant", "headers": "head", "content_type": "media",
			"priority": "urgency", "payload": "data", "created_at": "created", "available_at": "due", "topic": "concat('shop.', kind)",
		}}
		if b.st.Kind == connect.SQLite {
			layout.Columns["topic"] = "'shop.' || kind"
		}
		b.run(layout, importing.Options{DryRun: true}, importing.Report{Waiting: 3, Imported: 3})
		if got := b.written(); len(got) != 0 {
			b.Fatalf("the dry run wrote %d events", len(got))
		}
		b.run(layout, importing.Options{}, importing.Report{Waiting: 3, Imported: 3})
		got := b.written()
		if len(got) != 3 {
			b.Fatalf("%d events", len(got))
		}
		var lines []string
		for _, ev := range got {
			due := ""
			if !ev.AvailableAt.IsZero() {
				due = ev.AvailableAt.Format(time.DateOnly)
			}
			lines = append(lines, fmt.Sprint(ev.Type, "|", ev.AggregateType, "|", ev.AggregateID, "|", ev.TenantID, "|", ev.Topic, "|", ev.Headers, "|", ev.ContentType, "|",
				ev.Priority, "|", fmt.Sprintf("%x", ev.Payload), "|", ev.OccurredAt.Format(time.RFC3339Nano), "|", due, "|", ev.DedupKey))
		}
		key := func(id string) string { return waybill.DedupKey("import", "table", tableOf(b), id) }
		b.equal("the events", lines, []string{
			"OrderPlaced|order|17|acme|shop.OrderPlaced|map[retries:3 trace:t-1]|application/json|0|7b22746f74616c223a20317d|2026-03-01T12:00:01.25Z||" + key("z"),
			"OrderPaid|order|17||shop.OrderPaid|map[]|application/octet-stream|7|ff00|2026-03-01T12:00:02.25Z|2999-01-01|" + key("a"),
			"Greeted|order|||shop.Greeted|map[]|application/json|0|7b7d|2026-03-01T12:00:02.25Z||" + key("m"),
		})
	})
}

// tableOf returns the full name of the table.
func tableOf(b *bed) string {
	rep, err := importing.Run(b.Context(), b.st, importing.OwnTable{Table: b.table, ID: "id", Columns: map[string]string{"type": "'x'", "payload": "'{}'"}}, importing.Options{DryRun: true})
	if err != nil {
		b.Fatal(err)
	}
	return rep.Table
}

// TestImportedOnce: rows are not imported again after their events were
// delivered, in whatever form the table is named, and new rows are.
func TestImportedOnce(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(7)
		b.run(b.own(), importing.Options{Batch: 2, Limit: 5}, importing.Report{Waiting: 7, Imported: 5, More: true})
		b.equal("payloads", payloadsOf(b.written()), payloads(1, 5))
		b.equal("delivered", b.deliver(), payloads(1, 5))
		again := b.own()
		again.Table = tableOf(b)
		b.run(again, importing.Options{Batch: 3}, importing.Report{Waiting: 7, Imported: 2, Before: 5})
		b.run(b.own(), importing.Options{}, importing.Report{Waiting: 7, Before: 7})
		b.exec("INSERT INTO " + b.sql + ` (id, event_type, body) VALUES (0, 'OrderPlaced', '{"n": 0}')`) // a transaction that committed late
		b.run(b.own(), importing.Options{}, importing.Report{Waiting: 8, Imported: 1, Before: 7})
		b.equal("delivered", b.deliver(), append(payloads(0, 0), payloads(6, 7)...))
	})
}

// TestTimesOfASession: a TIMESTAMP of MySQL is a point in time, and comes as
// the time of day in the session's zone. A DATETIME has no zone, and is in UTC.
func TestTimesOfASession(t *testing.T) {
	for _, kind := range []string{connect.MySQL, testserver.MariaDBName} {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, kind)
			for i, one := range b.environ {
				if strings.HasPrefix(one, "WAYBILL_STORE=") {
					b.environ[i] += "?time_zone=%27%2B05%3A30%27"
				}
			}
			zoned, err := open(b.Context(), b.environ)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = zoned.Close() })
			b.st = zoned
			b.exec(`CREATE TABLE shop_outbox (id int PRIMARY KEY, at timestamp(6) NULL, plain datetime(6) NULL)`)
			b.exec(`INSERT INTO shop_outbox VALUES (1, FROM_UNIXTIME(1767225600.25), '2026-01-01 00:00:00.25'), (2, NULL, NULL)`)
			for _, column := range []string{"at", "plain"} {
				b.exec(`DELETE FROM waybill_outbox`)
				b.exec(`DELETE FROM waybill_job_sent`)
				b.exec(`DELETE FROM waybill_dedup`)
				b.run(importing.OwnTable{Table: b.table, ID: "id", Columns: map[string]string{"type": "'A'", "payload": "'1'", "created_at": column}},
					importing.Options{}, importing.Report{Waiting: 2, Imported: 2})
				if n := b.number(`SELECT COUNT(*) FROM waybill_outbox WHERE occurred_at = '2026-01-01 00:00:00.25'`); n != 1 {
					t.Errorf("%s: the time of the event is another one", column)
				}
			}
		})
	}
}

// TestMarkAndDelete: rows are changed in the transaction that imports them,
// also rows of an earlier import that left them.
func TestMarkAndDelete(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(9)
		b.exec("UPDATE " + b.sql + " SET sent = 1 WHERE id = 2")
		b.run(b.own(), importing.Options{Limit: 3}, importing.Report{Waiting: 8, Imported: 3, More: true}) // 1, 3, 4
		b.run(b.own(), importing.Options{Batch: 2, Limit: 2, Done: importing.Mark}, importing.Report{Waiting: 8, Imported: 2, Before: 3, Marked: 5, More: true})
		if n := b.number("SELECT count(*) FROM " + b.sql + " WHERE sent = 0 AND id > 6"); n != 3 {
			b.Errorf("%d of 3 rows wait", n)
		}
		b.run(b.own(), importing.Options{Done: importing.Delete}, importing.Report{Waiting: 3, Imported: 3, Deleted: 3})
		if n, sum := b.number("SELECT count(*) FROM "+b.sql), b.number("SELECT sum(id) FROM "+b.sql); n != 6 || sum != 21 {
			b.Errorf("%d rows with the sum %d are left, want 1 to 6", n, sum)
		}
		b.equal("payloads", payloadsOf(b.written()), append(payloads(1, 1), payloads(3, 9)...))
	})
}

// TestRowsThatOthersDeliver: a row that the other system marks or deletes while
// the import runs is not imported.
func TestRowsThatOthersDeliver(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(6)
		opts := importing.Options{Batch: 2, Progress: func(done, total int64) {
			if done == 2 && total == 6 {
				b.exec("UPDATE " + b.sql + " SET sent = 1 WHERE id = 4")
				b.exec("DELETE FROM " + b.sql + " WHERE id >= 5")
			}
		}}
		b.run(b.own(), opts, importing.Report{Waiting: 6, Imported: 3, Gone: 3})
		b.equal("payloads", payloadsOf(b.written()), payloads(1, 3))
	})
}

// TestInvalidRows: a row that cannot be an event stops the import before its
// batch, or is skipped and named.
func TestInvalidRows(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(7)
		b.exec("UPDATE " + b.sql + " SET body = '{' WHERE id = 4")
		b.exec("UPDATE " + b.sql + " SET event_type = '' WHERE id = 6")
		rep, err := importing.Run(b.Context(), b.st, b.own(), importing.Options{Batch: 3, Done: importing.Delete})
		var wrong *importing.RowError
		if !errors.As(err, &wrong) || wrong.ID != "4" || !strings.Contains(wrong.Problem, "Payload") {
			b.Fatalf("the error is %v", err)
		}
		b.counts(rep, importing.Report{Waiting: 7, Imported: 3, Deleted: 3})
		bad := []importing.RowError{{ID: "4", Problem: "event OrderPlaced: Payload: not valid JSON; set ContentType if it is something else"}, {ID: "6", Problem: "event ?: Type: is empty"}}
		b.run(b.own(), importing.Options{DryRun: true}, importing.Report{Waiting: 4, Imported: 2, Invalid: 2, InvalidRows: bad})
		b.run(b.own(), importing.Options{SkipInvalid: true, Done: importing.Delete}, importing.Report{Waiting: 4, Imported: 2, Deleted: 2, Invalid: 2, InvalidRows: bad})
		b.equal("payloads", payloadsOf(b.written()), append(payloads(1, 3), `{"n": 5}`, `{"n": 7}`))
		b.exec("UPDATE " + b.sql + ` SET event_type = 'OrderPaid', body = '{"n": 46}'`)
		b.run(b.own(), importing.Options{Done: importing.Delete}, importing.Report{Waiting: 2, Imported: 2, Deleted: 2})
	})
}

// held is a layout whose marks wait: the events of the batch are written, and
// not committed.
type held struct {
	importing.Layout
	event func(r *importing.Row)
	mark  func(rows []*importing.Row)
}

func (h held) Plan(ctx context.Context, db *importing.Database) (*importing.Plan, error) {
	p, err := h.Layout.Plan(ctx, db)
	if err != nil {
		return nil, err
	}
	event, mark := p.Event, p.Mark
	p.Event = func(r *importing.Row) (waybill.Event, error) {
		if h.event != nil {
			h.event(r)
		}
		return event(r)
	}
	p.Mark = func(ctx context.Context, tx *sql.Tx, rows []*importing.Row) error {
		if h.mark != nil {
			h.mark(rows)
		}
		return mark(ctx, tx, rows)
	}
	return p, nil
}

// TestTwoImports: an import that lost its lease to another one writes nothing
// more; one that has its lease keeps the other one out.
func TestTwoImports(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(6)
		second, err := open(b.Context(), b.environ)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = second.Close() }()
		// The first import is between its batches while the second one runs.
		var taken atomic.Bool
		first := importing.Options{Batch: 2, Lease: 50 * time.Millisecond, Progress: func(done, _ int64) {
			if done != 2 {
				return
			}
			waited := false
			rep, err := importing.Run(b.Context(), second, b.own(), importing.Options{Limit: 1, Waiting: func(time.Time) { waited = true }})
			if err != nil || rep.Imported != 1 || rep.Before != 2 {
				b.Errorf("the second import: %+v, %v", rep, err)
			}
			taken.Store(waited)
		}}
		rep, err := importing.Run(b.Context(), b.st, b.own(), first)
		if !errors.Is(err, importing.ErrBusy) || !taken.Load() {
			b.Fatalf("the first import: %v; the second one waited: %v", err, taken.Load())
		}
		b.counts(rep, importing.Report{Waiting: 6, Imported: 2})
		b.equal("payloads", payloadsOf(b.written()), payloads(1, 3))

		// An import that renews its lease is not replaced.
		busy := 0
		renewing := importing.Options{Batch: 1, Lease: time.Minute, Progress: func(int64, int64) {
			if busy++; busy > 1 {
				return
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			_, err := importing.Run(ctx, second, b.own(), importing.Options{Waiting: func(time.Time) { cancel() }})
			if !errors.Is(err, context.Canceled) {
				b.Errorf("the second import: %v", err)
			}
		}}
		b.run(b.own(), renewing, importing.Report{Waiting: 6, Imported: 3, Before: 3})
		b.equal("payloads", payloadsOf(b.written()), payloads(1, 6))
	})
}

// TestOvertakenInABatch: an import whose lease ends in the middle of a batch
// writes nothing of it. SQLite has one writer: there the other import waits.
func TestOvertakenInABatch(t *testing.T) {
	for _, kind := range stores[1:] {
		t.Run(kind, func(t *testing.T) {
			b := newBed(t, kind)
			b.fill(6)
			second, err := open(b.Context(), b.environ)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = second.Close() }()
			waited := false
			overtaken := held{Layout: b.own(), event: func(r *importing.Row) {
				if r.ID != "3" {
					return
				}
				rep, err := importing.Run(b.Context(), second, b.own(), importing.Options{Limit: 3, Waiting: func(time.Time) { waited = true }})
				if err != nil || rep.Imported != 3 || rep.Before != 2 {
					b.Errorf("the second import: %+v, %v", rep, err)
				}
			}}
			rep, err := importing.Run(b.Context(), b.st, overtaken, importing.Options{Batch: 2, Lease: 200 * time.Millisecond})
			if !errors.Is(err, importing.ErrBusy) || !waited {
				b.Fatalf("the first import: %v; the second one waited: %v", err, waited)
			}
			b.counts(rep, importing.Report{Waiting: 6, Imported: 2})
			b.equal("payloads", payloadsOf(b.written()), payloads(1, 5))
		})
	}
}

// TestMistakes: an error names what is missing, and what it could be.
func TestMistakes(t *testing.T) {
	onStores(t, func(b *bed) {
		b.fill(2)
		wrong := func(change func(o *importing.OwnTable), text, advice string) {
			b.Helper()
			o := b.own()
			change(&o)
			_, err := importing.Run(b.Context(), b.st, o, importing.Options{})
			if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(hint.Of(err), advice) {
				b.Errorf("%v (hint: %s), want %q and %q", err, hint.Of(err), text, advice)
			}
		}
		wrong(func(o *importing.OwnTable) { o.Table += "x" }, "no table "+b.table+"x", "did you mean "+b.table+"?")
		wrong(func(o *importing.OwnTable) { o.Columns["payload"] = "bodyy" }, "shop_outbox has no column bodyy", "did you mean body?")
		wrong(func(o *importing.OwnTable) { o.ID = "number" }, "has no column number", "id, event_type, order_id, body, sent")
		wrong(func(o *importing.OwnTable) { o.Order = "id desc, created" }, "has no column created", "its columns")
		wrong(func(o *importing.OwnTable) { o.Where = "sent IS NOTHING" }, "reading table", "check the expressions")
		wrong(func(o *importing.OwnTable) { o.Columns["payload"] = "coalesce(bodyy, '')" }, "reading table", "columns of the table: id, event_type")
		wrong(func(o *importing.OwnTable) { o.ID = "event_type" }, "several rows have the id OrderPlaced", "must be unique")
		wrong(func(o *importing.OwnTable) { o.ID = "nullif(order_id, 'o-2')" }, "the id of a row is NULL", "")
		wrong(func(o *importing.OwnTable) { o.Columns["payloads"] = "body" }, "no field payloads", "did you mean payload?")
		o := b.own()
		o.Set = ""
		if _, err := importing.Run(b.Context(), b.st, o, importing.Options{Done: importing.Mark}); err == nil || !strings.Contains(err.Error(), "no state of its own") {
			b.Errorf("marking without a mark: %v", err)
		}
		o.Set = "sent = 'x' || nothing"
		_, err := importing.Run(b.Context(), b.st, o, importing.Options{Done: importing.Mark})
		if err == nil || !strings.Contains(err.Error(), "changing the rows") {
			b.Errorf("a wrong mark: %v", err)
		}
		if got := b.written(); len(got) != 0 {
			b.Errorf("%d events were written", len(got))
		}
	})
}
