package imports_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// routerTable is the table of Debezium's documentation, with a column for the
// order, and one for an additional header.
const routerTable = `CREATE TABLE outbox (
  id            %s NOT NULL PRIMARY KEY,
  aggregatetype varchar(255) NOT NULL,
  aggregateid   varchar(255) NOT NULL,
  type          varchar(255) NOT NULL,
  payload       %s,
  tracingspan   varchar(255),
  seq           bigint NOT NULL
)`

// uuid returns an id whose order is not that of the rows.
func uuid(n int) string { return fmt.Sprintf("%08x-0000-4000-8000-%012d", (n*7)%16, n) }

// fillRouter writes rows as a service does, one in each transaction.
func (p *place) fillRouter(mark func(n int) string, from, to int) {
	p.Helper()
	for i := from; i <= to; i++ {
		p.exec("INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, tracingspan, seq) VALUES ("+mark(1)+", "+mark(2)+", "+mark(3)+", "+mark(4)+", "+mark(5)+", "+
			mark(6)+", "+mark(7)+")", uuid(i), []string{"order", "invoice"}[i%2], fmt.Sprintf("a-%d", i%4), "Event"+fmt.Sprint(i), numbered(i), fmt.Sprintf("span-%d", i), i)
	}
}

// routed returns what is compared of an event.
func routed(ev waybill.Event) string {
	return fmt.Sprintf("%s>%s/%s %d %s", ev.Topic, ev.AggregateType, ev.Type, number(ev), headers(ev))
}

// TestDebezium: the guide "From Debezium", with the columns of the router's
// documentation.
func TestDebezium(t *testing.T) {
	dollar := func(n int) string { return fmt.Sprintf("$%d", n) }
	question := func(int) string { return "?" }
	for _, c := range []struct {
		name, id, payload string
		place             func(t *testing.T) *place
		mark              func(n int) string
	}{
		{"postgres", "uuid", "jsonb", postgres, dollar},
		{"mysql", "varchar(36)", "json", func(t *testing.T) *place { return mysqlPlace(t, testserver.MySQLName) }, question},
		{"mariadb", "varchar(36)", "text", func(t *testing.T) *place { return mysqlPlace(t, testserver.MariaDBName) }, question},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.place(t)
			p.exec(fmt.Sprintf(routerTable, c.id, c.payload))
			p.fillRouter(c.mark, 1, 14)
			guide := strings.NewReplacer("0b7c7bd4-2c1c-4f0e-8f0e-8f4f0a4a3c11", uuid(5), "created_at", "seq", " --column timestamp=seq", "").Replace(p.blocks("sh debezium")[0])
			same(p, "the output", p.shell(guide), "would import: 9\nimported: 9\ndeleted: 9\n")
			same(p, "rows that are left", p.number("SELECT count(*) FROM outbox WHERE seq <= 5"), 5)
			same(p, "rows", p.number("SELECT count(*) FROM outbox"), 5)
			got := p.deliver()
			same(p, "the number of events", count(got), 9)
			for aggregate, numbers := range map[string][]int{"a-0": {8, 12}, "a-1": {9, 13}, "a-2": {6, 10, 14}, "a-3": {7, 11}} {
				var want []string
				for _, n := range numbers {
					kind := []string{"order", "invoice"}[n%2]
					want = append(want, fmt.Sprintf("outbox.event.%s>%s/Event%d %d debezium_id=%s trace=span-%d", kind, kind, n, n, uuid(n), n))
				}
				same(p, aggregate, fields(got[aggregate], routed), strings.Join(want, ", "))
			}
			same(p, "another import", p.report("debezium", "outbox", "--order", "seq", "--after", uuid(5)), report{})
			same(p, "all rows", p.report("debezium", "outbox", "--where", "seq > 3"), report{Waiting: 2, Imported: 2})
			for _, wrong := range []struct{ args, want string }{
				{"outbox --after " + uuid(15), "outbox has no row " + uuid(15)},
				{"outbox --column key=id", "the router has no field key"},
				{"outbox --header trace=span", "outbox has no column span"},
				{"waybill_setting", "has no column"},
				{"outbox --mark", "has no flag --mark"},
			} {
				if out := p.fails(strings.Fields("import debezium " + wrong.args)...); !strings.Contains(out, wrong.want) {
					t.Errorf("%s: %s, want %s", wrong.args, out, wrong.want)
				}
			}
		})
	}
}

// TestDebeziumSlot: the query of the guide finds the last row that a connector
// has confirmed, on a real slot of the connector's plugin.
func TestDebeziumSlot(t *testing.T) {
	p := postgres(t)
	p.exec(fmt.Sprintf(routerTable, "uuid", "jsonb"))
	p.exec("CREATE TABLE other (id int)")
	p.exec("CREATE PUBLICATION dbz_publication FOR ALL TABLES")
	slot := "'debezium_' || current_database()"
	p.exec("SELECT pg_create_logical_replication_slot(" + slot + ", 'pgoutput')")
	t.Cleanup(func() {
		_, _ = p.db.ExecContext(context.WithoutCancel(t.Context()), "SELECT pg_drop_replication_slot("+slot+")")
	})
	query := strings.NewReplacer("'debezium'", slot, "created_at", "seq").Replace(p.blocks("sql debezium")[0])
	last := func() string {
		t.Helper()
		var id sql.NullString
		if err := p.db.QueryRowContext(t.Context(), query).Scan(&id); err != nil && !errors.Is(err, sql.ErrNoRows) {
			t.Fatal(err)
		}
		return id.String
	}
	dollar := func(n int) string { return fmt.Sprintf("$%d", n) }
	p.fillRouter(dollar, 1, 5)
	same(p, "before the connector has read anything", last(), "")
	p.exec("SELECT pg_replication_slot_advance(" + slot + ", pg_current_wal_lsn())")
	same(p, "after it has read everything", last(), uuid(5))
	p.exec("INSERT INTO other VALUES (1), (2)")
	p.fillRouter(dollar, 6, 14)
	same(p, "while nine rows wait", last(), uuid(5))
	same(p, "the import", p.report("debezium", "outbox", "--order", "seq", "--after", last()), report{Waiting: 9, Imported: 9})
}
