package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// prepareDashboard defines the flags of dashboard.
func prepareDashboard(flags *flag.FlagSet) task {
	history := flags.String("history", "500k", "delivered events in the history")
	dead := flags.String("dead", "100k", "dead letters")
	rounds := flags.Int("rounds", 5, "requests of every page")
	var sizes [2]int
	return task{
		databases: func() ([]string, error) {
			for i, text := range []string{*history, *dead} {
				var err error
				if sizes[i], err = parseSize(text); err != nil {
					return nil, err
				}
			}
			if *rounds < 1 {
				return nil, fmt.Errorf("-rounds %d: use 1 or more", *rounds)
			}
			return []string{"postgres"}, nil
		},
		run: func(ctx context.Context, out, progress io.Writer) error {
			b := boards{history: sizes[0], dead: sizes[1], rounds: *rounds, out: out, progress: progress}
			return b.run(ctx)
		},
	}
}

// boards measures the pages of a dashboard.
type boards struct {
	history, dead, rounds int
	out, progress         io.Writer
	// delivered and letter are a delivered event and a dead letter.
	delivered, letter waybill.ID
}

const boardSchema = "bench_dashboard"

// run fills the tables, and measures every page: first its time, and then once
// with the plans of its statements.
func (b *boards) run(ctx context.Context) (err error) {
	fast, closeFast, err := b.open(ctx, nil)
	if err != nil {
		return err
	}
	defer closeFast()
	plans := &planned{}
	slow, closeSlow, err := b.open(ctx, plans)
	if err != nil {
		return err
	}
	defer closeSlow()
	fmt.Fprintf(b.out, "dashboard: %s delivered events and %s dead letters, PostgreSQL; the time of a page at the server\n\n", count(b.history), count(b.dead))
	fmt.Fprintf(b.out, "  %-34s %9s %9s %11s  %s\n", "page", "median", "highest", "statements", "tables read as a whole")
	for _, page := range b.pages() {
		var times []float64
		for i := range b.rounds {
			if page.cached && i > 0 { // it reads the tables once a second
				time.Sleep(time.Second)
			}
			took, err := ask(ctx, fast, page.path)
			if err != nil {
				return err
			}
			times = append(times, took.Seconds()*1000)
		}
		plans.forget()
		if _, err := ask(ctx, slow, page.path); err != nil {
			return err
		}
		n, scans := plans.found()
		fmt.Fprintf(b.out, "  %-34s %6.0f ms %6.0f ms %11d  %s\n", page.name, median(times), slices.Max(times), n, scans)
	}
	return nil
}

// count returns a number with separated thousands.
func count(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

type board struct {
	name, path string
	cached     bool
}

func (b *boards) pages() []board {
	return []board{
		{"overview", "/", true},
		{"dead letters by cause", "/dead", false},
		{"dead letters of one cause", "/dead?cause=" + admin.CauseOf("customer 1 is unknown!"), false},
		{"dead letters of one type", "/dead?type=Type3", false},
		{"dead letters of the last hour", "/dead?since=1h", false},
		{"dead letters by a common error", "/dead?error=is+unknown!!", false},
		{"dead letters by a rare error", "/dead?error=customer+500+is", false},
		{"a dead letter", "/events/" + b.letter.String(), false},
		{"a delivered event", "/events/" + b.delivered.String(), false},
		{"an unknown event", "/events/" + waybill.NewID().String(), false},
		{"events, all states", "/events", false},
		{"events, dead", "/events?state=dead", false},
		{"events of one correlation id", "/events?correlation_id=none", false},
		{"events, delivered", "/events?state=delivered", false},
		{"events of one aggregate", "/events?aggregate_type=order&aggregate_id=17", false},
		{"destinations", "/destinations", true},
		{"blocked aggregates", "/blocked", false},
		{"consumer groups", "/groups", true},
		{"relays", "/relays", true},
		{"idempotency keys", "/keys", true},
	}
}

// ask requests a page. Events that do not exist are pages, too.
func ask(ctx context.Context, d *dashboard.Dashboard, path string) (time.Duration, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	w := httptest.NewRecorder()
	began := time.Now()
	d.ServeHTTP(w, r)
	took := time.Since(began)
	if w.Code != http.StatusOK && w.Code != http.StatusNotFound && w.Code != http.StatusGatewayTimeout {
		return 0, fmt.Errorf("%s: status %d: %s", path, w.Code, w.Body)
	}
	return took, nil
}

// open opens a dashboard. The first one fills the tables. With plans, every
// statement of its connections reports its plan.
func (b *boards) open(ctx context.Context, plans *planned) (*dashboard.Dashboard, func(), error) {
	cfg, err := pgxpool.ParseConfig(os.Getenv(testserver.EnvPostgres))
	if err != nil {
		return nil, nil, err
	}
	if plans != nil {
		cfg.ConnConfig.OnNotice = plans.notice
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, `LOAD 'auto_explain'; SET auto_explain.log_level = notice; SET auto_explain.log_min_duration = 0`)
			return err
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	d, err := b.mount(ctx, pool, plans == nil)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return d, func() { d.Close(); pool.Close() }, nil
}

func (b *boards) mount(ctx context.Context, pool *pgxpool.Pool, fill bool) (*dashboard.Dashboard, error) {
	if fill {
		if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+boardSchema+` CASCADE`); err != nil {
			return nil, err
		}
	}
	db, err := pgstore.New(pool, pgstore.Config{Schema: boardSchema})
	if err != nil {
		return nil, err
	}
	if fill {
		if _, err := db.Migrate(ctx); err != nil {
			return nil, err
		}
		if err := b.fill(ctx, pool); err != nil {
			return nil, err
		}
	}
	c := dashboard.Config{Logger: slog.New(slog.DiscardHandler), QueryTimeout: time.Minute}
	var errs [4]error
	c.Outbox, errs[0] = admin.NewOutbox(db, admin.Config{})
	c.Destinations, errs[1] = admin.NewDestinations(db, admin.Config{})
	c.Inbox, errs[2] = admin.NewInbox(db, admin.Config{})
	c.Keys, errs[3] = admin.NewKeys(db, admin.Config{})
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return dashboard.New(c)
}

// The rows are those of a week: ids and times grow together.
const (
	boardID = `(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - (%[1]d - n) * (604800000::bigint / %[1]d)), 12, '0') || substr(md5(n::text || '%[2]s'), 1, 20))::uuid`
	boardAt = `now() - (%[1]d - n) * (interval '7 days' / %[1]d)`

	fillHistory = `INSERT INTO {s}.waybill_history (lane, seq, id, type, aggregate_type, aggregate_id, tenant_id, topic, schema_version, occurred_at, priority,
	content_type, payload, created_at, attempts, replay, done_at)
SELECT n %% 32, n, ` + boardID + `, 'Type' || n %% 20, 'order', (n / 5)::text, 'tenant' || n %% 50, 'Type' || n %% 20, 1, ` + boardAt + `, 0,
	'application/json', convert_to(repeat('x', 200), 'UTF8'), ` + boardAt + `, 0, 0, ` + boardAt + ` FROM generate_series(1, %[1]d) n`
	fillDead = `INSERT INTO {s}.waybill_dead (lane, seq, id, type, aggregate_type, aggregate_id, tenant_id, topic, schema_version, occurred_at, priority,
	content_type, payload, created_at, attempts, replay, holds, last_error, died_at, cause)
SELECT n %% 32, n + 1000000000, ` + boardID + `, 'Type' || n %% 20, 'order', (n / 5)::text, 'tenant' || n %% 50, 'Type' || n %% 20, 1, ` + boardAt + `, 0,
	'application/json', convert_to(repeat('x', 200), 'UTF8'), ` + boardAt + `, 10, 0, false, e.text, ` + boardAt + `, e.cause
FROM (SELECT n, 'customer ' || n || ' is unknown' || repeat('!', n %% 7) AS text, {causes}[n %% 7 + 1] AS cause FROM generate_series(1, %[1]d) n) AS e`
)

// boardCauses returns an array of the causes of the errors.
func boardCauses() string {
	var ids []string
	for n := range 7 {
		ids = append(ids, "'"+admin.CauseOf("customer 1 is unknown"+strings.Repeat("!", n))+"'")
	}
	return "(ARRAY[" + strings.Join(ids, ", ") + "])"
}

func (b *boards) fill(ctx context.Context, pool *pgxpool.Pool) error {
	for _, f := range []struct {
		statement, table string
		rows             int
		example          *waybill.ID
	}{{fillHistory, "waybill_history", b.history, &b.delivered}, {fillDead, "waybill_dead", b.dead, &b.letter}} {
		fmt.Fprintf(b.progress, "bench: %s rows of %s\n", count(f.rows), f.table)
		statement := fmt.Sprintf(strings.NewReplacer("{s}", boardSchema, "{causes}", boardCauses()).Replace(f.statement), f.rows, f.table)
		if _, err := pool.Exec(ctx, statement); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, "VACUUM ANALYZE "+boardSchema+"."+f.table); err != nil {
			return err
		}
		var id [16]byte
		if err := pool.QueryRow(ctx, "SELECT id FROM "+boardSchema+"."+f.table+" ORDER BY id LIMIT 1 OFFSET 10").Scan(&id); err != nil {
			return err
		}
		*f.example = waybill.ID(id)
	}
	return nil
}

// planned collects the plans of statements.
type planned struct {
	mu    sync.Mutex
	plans []string
}

func (p *planned) notice(_ *pgconn.PgConn, n *pgconn.Notice) {
	if strings.Contains(n.Message, "plan:") {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.plans = append(p.plans, n.Message)
	}
}

func (p *planned) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = nil
}

var scanned = regexp.MustCompile(`Seq Scan on (?:\w+\.)?waybill_(history\w*|dead)\b`)

// found returns the number of statements, and the large tables that they read
// as a whole.
func (p *planned) found() (n int, scans string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var tables []string
	for _, plan := range p.plans {
		for _, m := range scanned.FindAllStringSubmatch(plan, -1) {
			if !slices.Contains(tables, m[1]) {
				tables = append(tables, m[1])
			}
		}
	}
	slices.Sort(tables)
	return len(p.plans), strings.Join(tables, ", ")
}
