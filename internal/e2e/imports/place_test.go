package imports_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
)

// program builds waybill once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "waybill-imports")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "waybill")
	out, err := exec.Command("go", "build", "-o", path, "github.com/waybillhq/waybill/cmd/waybill").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// place is a database of its own with Waybill's tables.
type place struct {
	*testing.T
	db    *sql.DB
	store driver.Store[*sql.Tx]
	url   string // for waybill
	dsn   string // for the driver
	dir   string // in which commands run
}

func postgres(t *testing.T) *place {
	t.Helper()
	address, err := url.Parse(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	name := create(t, "pgx", address.String(), " WITH (FORCE)")
	address.Path = "/" + name
	p := &place{T: t, url: address.String(), dsn: address.String()}
	p.connect("pgx")
	if p.store, err = pgstore.NewSQL(p.db, pgstore.Config{}); err != nil {
		t.Fatal(err)
	}
	p.waybill("migrate", "up")
	return p
}

func mysqlPlace(t *testing.T, server string) *place {
	t.Helper()
	dsn := testserver.Address(t, server)
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := create(t, "mysql", dsn, "")
	cfg.DBName, cfg.ParseTime = name, true
	p := &place{T: t, dsn: cfg.FormatDSN()}
	p.url = (&url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + name}).String()
	p.connect("mysql")
	if p.store, err = mysqlstore.New(p.db, mysqlstore.Config{}); err != nil {
		t.Fatal(err)
	}
	p.waybill("migrate", "up")
	return p
}

// create creates a database and returns its name.
func create(t *testing.T, driverName, dsn, force string) string {
	t.Helper()
	name := strings.ToLower("import_" + waybill.NewID().String())
	server, err := sql.Open(driverName, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.ExecContext(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+force); err != nil {
			t.Error(err)
		}
		_ = server.Close()
	})
	if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return name
}

// connect opens the database.
func (p *place) connect(driverName string) {
	p.Helper()
	var err error
	if p.db, err = sql.Open(driverName, p.dsn); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = p.db.Close() })
	p.dir = p.TempDir()
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// exec runs a statement.
func (p *place) exec(statement string, args ...any) {
	p.Helper()
	if _, err := p.db.ExecContext(p.Context(), statement, args...); err != nil {
		p.Fatalf("%s: %v", statement, err)
	}
}

// number returns the number that a query returns.
func (p *place) number(query string) int {
	p.Helper()
	var n int
	if err := p.db.QueryRowContext(p.Context(), query).Scan(&n); err != nil {
		p.Fatalf("%s: %v", query, err)
	}
	return n
}

// waybill runs the program and returns its output.
func (p *place) waybill(args ...string) string {
	p.Helper()
	path, err := program()
	p.must(err)
	return p.run(exec.CommandContext(p.Context(), path, args...))
}

// fails runs the program, which must fail, and returns its errors.
func (p *place) fails(args ...string) string {
	p.Helper()
	path, err := program()
	p.must(err)
	cmd := exec.CommandContext(p.Context(), path, args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), "WAYBILL_STORE="+p.url)
	var problems strings.Builder
	cmd.Stderr = &problems
	if out, err := cmd.Output(); err == nil {
		p.Fatalf("%s: %s", strings.Join(args, " "), out)
	}
	return problems.String()
}

// shell runs a block of the guide.
func (p *place) shell(block string) string {
	p.Helper()
	return p.run(exec.CommandContext(p.Context(), "sh", "-e", "-c", block))
}

func (p *place) run(cmd *exec.Cmd) string {
	p.Helper()
	path, err := program()
	p.must(err)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "WAYBILL_STORE="+p.url, "PATH="+filepath.Dir(path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		p.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, &problems)
	}
	return string(out)
}

// blocks returns the blocks of the guide with an info string.
func (p *place) blocks(info string) []string {
	p.Helper()
	return docblock.Blocks(p.T, "docs/import.md", info)
}

// report is what waybill import --json prints.
type report struct {
	Table                                             string
	Waiting, Imported, Gone, Marked, Deleted, Invalid int
	Before                                            int `json:"imported_before"`
}

// report runs an import and returns its report without the table's name.
func (p *place) report(args ...string) report {
	p.Helper()
	var r report
	p.must(json.Unmarshal([]byte(p.waybill(append([]string{"import", "--json"}, args...)...)), &r))
	r.Table = ""
	return r
}

// same requires two values to be equal.
func same[V comparable](p *place, what string, got, want V) {
	p.Helper()
	if got != want {
		p.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// deliver delivers what is due and returns the events of each aggregate, in
// the order of their delivery, and those without an aggregate by type.
func (p *place) deliver() map[string][]waybill.Event {
	p.Helper()
	var mu sync.Mutex
	got := map[string][]waybill.Event{}
	r, err := relay.New(p.store, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		line := d.AggregateID
		if line == "" {
			line = d.Type
		}
		got[line] = append(got[line], d.Event)
		return nil
	}), relay.Config{})
	p.must(err)
	p.must(r.Once(p.Context()))
	return got
}

// count returns the number of events.
func count(all map[string][]waybill.Event) int {
	n := 0
	for _, evs := range all {
		n += len(evs)
	}
	return n
}

// fields returns a part of each event.
func fields(evs []waybill.Event, part func(ev waybill.Event) string) string {
	var all []string
	for _, ev := range evs {
		all = append(all, part(ev))
	}
	return strings.Join(all, ", ")
}

// headers returns an event's headers as text.
func headers(ev waybill.Event) string {
	var all []string
	for name, value := range ev.Headers {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// write writes an event as the service does after the switch.
func (p *place) write(ev waybill.Event) {
	p.Helper()
	box, err := outbox.New(p.store, outbox.Config{})
	p.must(err)
	p.must(box.InTx(p.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, ev) }))
}

// payload returns an event's payload.
func payload(ev waybill.Event) string { return string(ev.Payload) }

// numbered returns payloads with numbers.
func numbered(n int) string { return fmt.Sprintf(`{"n": %d}`, n) }
