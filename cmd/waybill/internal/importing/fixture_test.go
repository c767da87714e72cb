package importing_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/importing"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// stores are the databases of the tests.
var stores = []string{connect.SQLite, connect.Postgres, connect.MySQL, testserver.MariaDBName}

// bed is a store with a table of another system.
type bed struct {
	*testing.T
	st      *connect.Store
	environ []string
	// table is the name of that table, and sql the name in statements.
	table, sql string
}

// onStores runs a test on every database.
func onStores(t *testing.T, test func(b *bed)) {
	t.Helper()
	for _, kind := range stores {
		t.Run(kind, func(t *testing.T) { test(newBed(t, kind)) })
	}
}

func newBed(t *testing.T, kind string) *bed {
	t.Helper()
	b := &bed{T: t, table: "shop_outbox", sql: "shop_outbox"}
	name := strings.ToLower("import_" + waybill.NewID().String())
	switch kind {
	case connect.SQLite:
		b.environ = []string{"WAYBILL_STORE=sqlite:" + filepath.Join(t.TempDir(), "waybill.db")}
	case connect.Postgres:
		b.environ = []string{"WAYBILL_STORE=" + testserver.Postgres(t), "WAYBILL_STORE_SCHEMA=" + name, "WAYBILL_STORE_LANES=1"}
		b.table, b.sql = name+".shop_outbox", name+".shop_outbox"
	default:
		cfg, err := mysql.ParseDSN(testserver.Address(t, kind))
		if err != nil {
			t.Fatal(err)
		}
		address := url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + name}
		b.environ = []string{"WAYBILL_STORE=" + address.String(), "WAYBILL_STORE_LANES=1"}
		server, err := sql.Open("mysql", cfg.FormatDSN())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = server.ExecContext(context.WithoutCancel(t.Context()), "DROP DATABASE "+name)
			_ = server.Close()
		})
		if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
	}
	st, err := open(t.Context(), b.environ)
	if err != nil {
		t.Fatal(err)
	}
	b.st = st
	t.Cleanup(func() {
		if kind == connect.Postgres {
			_, _ = st.SQL.ExecContext(context.WithoutCancel(t.Context()), "DROP SCHEMA "+name+" CASCADE")
		}
		_ = st.Close()
	})
	if _, err := st.Migrator.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// open opens the store of an environment.
func open(ctx context.Context, environ []string) (*connect.Store, error) {
	loaded, err := settings.Load(settings.Sources{Environ: environ})
	if err != nil {
		return nil, err
	}
	return connect.OpenStore(ctx, loaded.Relays[0].Store, true)
}

// exec runs a statement.
func (b *bed) exec(statement string, args ...any) {
	b.Helper()
	if b.st.Kind == connect.Postgres {
		for n := range args {
			statement = strings.Replace(statement, "?", fmt.Sprintf("$%d", n+1), 1)
		}
	}
	if _, err := b.st.SQL.ExecContext(b.Context(), statement, args...); err != nil {
		b.Fatalf("%s: %v", statement, err)
	}
}

// number returns the number that a query returns.
func (b *bed) number(query string) int {
	b.Helper()
	var n int
	if err := b.st.SQL.QueryRowContext(b.Context(), query).Scan(&n); err != nil {
		b.Fatalf("%s: %v", query, err)
	}
	return n
}

// fill creates the table with n rows. Row i is that of aggregate o-(i%3).
func (b *bed) fill(n int) {
	b.Helper()
	b.exec("CREATE TABLE " + b.sql + ` (id bigint PRIMARY KEY, event_type varchar(40) NOT NULL, order_id varchar(40), body varchar(200) NOT NULL, sent int NOT NULL DEFAULT 0)`)
	for i := 1; i <= n; i++ {
		b.exec("INSERT INTO "+b.sql+" (id, event_type, order_id, body) VALUES (?, ?, ?, ?)", i, "OrderPlaced", fmt.Sprintf("o-%d", i%3), fmt.Sprintf(`{"n": %d}`, i))
	}
}

// own returns the layout of the table that fill creates.
func (b *bed) own() importing.OwnTable {
	return importing.OwnTable{Table: b.table, ID: "id", Where: "sent = 0", Set: "sent = 1", Columns: map[string]string{
		"type": "event_type", "aggregate_type": "'order'", "aggregate_id": "order_id", "payload": "body",
	}}
}

// run imports, and requires the counts of the report.
func (b *bed) run(layout importing.Layout, opts importing.Options, want importing.Report) {
	b.Helper()
	rep, err := importing.Run(b.Context(), b.st, layout, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.counts(rep, want)
}

// counts compares the counts of two reports.
func (b *bed) counts(got, want importing.Report) {
	b.Helper()
	want.Source, want.Table, want.DryRun = got.Source, got.Table, got.DryRun
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		b.Errorf("the report is %+v,\nwant %+v", got, want)
	}
}

// written returns the events in the outbox, in their order.
func (b *bed) written() []waybill.Event {
	b.Helper()
	var all []store.Record
	for _, state := range []store.State{store.Ready, store.Delayed} {
		rows, err := b.st.OutboxAdmin.List(b.Context(), state, store.Filter{}, 0, 10_000)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, rows...)
	}
	slices.SortFunc(all, func(x, y store.Record) int { return int(x.Seq - y.Seq) })
	var evs []waybill.Event
	for _, r := range all {
		evs = append(evs, r.Event)
	}
	return evs
}

// deliver delivers what is ready and returns the payloads, in the order of the
// rows that fill creates.
func (b *bed) deliver() []string {
	b.Helper()
	var mu sync.Mutex
	var got []string
	r, err := relay.New(b.st, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(d.Payload))
		return nil
	}), relay.Config{})
	if err == nil {
		err = r.Once(b.Context())
	}
	if err != nil {
		b.Fatal(err)
	}
	slices.SortFunc(got, func(x, y string) int { return cmp.Or(len(x)-len(y), strings.Compare(x, y)) })
	return got
}

// payloads returns the payloads of the rows from one id to another.
func payloads(from, to int) []string {
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprintf(`{"n": %d}`, i))
	}
	return all
}

// payloadsOf returns the payloads of events.
func payloadsOf(evs []waybill.Event) []string {
	var all []string
	for _, ev := range evs {
		all = append(all, string(ev.Payload))
	}
	return all
}

// equal requires two lists to be equal.
func (b *bed) equal(what string, got, want []string) {
	b.Helper()
	if !slices.Equal(got, want) {
		b.Errorf("%s: %d, want %d:\n%q\n%q", what, len(got), len(want), got, want)
	}
}
