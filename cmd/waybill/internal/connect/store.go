package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	brokerdriver "github.com/waybillhq/waybill/broker/driver"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// The kinds of stores.
const (
	Postgres = "postgres"
	MySQL    = "mysql"
	SQLite   = "sqlite"
)

// storeSchemes are the prefixes of store URLs.
var storeSchemes = []string{"postgres://", "mysql://", "sqlite:"}

// StoreSchemes returns the prefixes of store URLs.
func StoreSchemes() []string { return slices.Clone(storeSchemes) }

// Reconciler runs jobs; see [reconcile.Reconciler].
type Reconciler interface {
	Run(ctx context.Context) error
	RunOnce(ctx context.Context, job string) (reconcile.Report, error)
	DryRun(ctx context.Context, job string) (reconcile.Report, error)
}

// Store is an open store.
type Store struct {
	// Roles are the roles that do not depend on the type of a transaction.
	driver.Roles[any]
	// Kind is [Postgres], [MySQL] or [SQLite].
	Kind string
	// Address is the store's URL. It prints without its password.
	Address settings.Secret
	// SQL is the underlying database, for queries that the store does not
	// provide.
	SQL *sql.DB
	// InSQL are the roles for transactions of SQL.
	InSQL driver.Roles[*sql.Tx]
	// Send writes events in their own transaction.
	Send func(ctx context.Context, evs ...waybill.Event) ([]outbox.Receipt, error)
	// Reconciler returns a reconciler for jobs on the store.
	Reconciler func(jobs []reconcile.Job, cfg reconcile.Config) (Reconciler, error)

	closers []func() error
}

// Close closes the store.
func (s *Store) Close() error {
	var errs []error
	for _, fn := range s.closers {
		errs = append(errs, fn())
	}
	return errors.Join(errs...)
}

// OpenStore opens a store and connects to it. With create, a missing SQLite
// file is created; otherwise a missing file is an error, so that a read-only
// command leaves no empty file behind.
func OpenStore(ctx context.Context, cfg settings.Store, create bool) (*Store, error) {
	u, err := storeURL(cfg)
	if err != nil {
		return nil, err
	}
	var s *Store
	switch u.Scheme {
	case Postgres:
		s, err = openPostgres(ctx, cfg)
	case MySQL:
		s, err = openMySQL(cfg, u)
	default:
		s, err = openSQLite(cfg, create)
	}
	if err != nil {
		return nil, err
	}
	s.Address = cfg.URL
	if err := s.reach(ctx, cfg.ConnectTimeout); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// StoreKind returns the kind of a store's address.
func StoreKind(cfg settings.Store) (string, error) {
	u, err := storeURL(cfg)
	if err != nil {
		return "", err
	}
	return u.Scheme, nil
}

// storeURL parses a store's address.
func storeURL(cfg settings.Store) (*url.URL, error) {
	address := cfg.URL
	if rest, ok := strings.CutPrefix(address.Reveal(), "postgresql://"); ok { // libpq accepts both schemes
		address = settings.NewSecret("postgres://" + rest)
	}
	return parse("store.url", address, storeSchemes)
}

// reach connects to the server for the first time.
func (s *Store) reach(ctx context.Context, limit time.Duration) error {
	if s.Kind == SQLite {
		return nil // already opened
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.SQL.PingContext(ctx); err != nil {
		advice := "check that the server is running, and the user name and password; waybill config shows the origin of the URL"
		if notTrusted := new(tls.CertificateVerificationError); errors.As(err, &notTrusted) {
			advice = "check the server's certificate, and name the file of its authority in the URL: sslrootcert=FILE for PostgreSQL, ca=FILE for MySQL"
		}
		return unreachable("store.url", s.Address, advice, err)
	}
	return nil
}

// Ready checks that all migrations of this program are applied.
func (s *Store) Ready(ctx context.Context) error {
	all, err := s.Migrator.Migrations(ctx)
	if err != nil {
		return s.Clean(err)
	}
	missing, applied := 0, 0
	for _, m := range all {
		switch {
		case m.AppliedAt.IsZero():
			missing++
		default:
			applied++
		}
	}
	switch {
	case applied == 0:
		return hint.New("create them with: waybill migrate up", "%s: %w", s.Address, ErrNoTables)
	case missing > 0:
		return hint.New("apply them with: waybill migrate up", "%s: %w: %d of %d migrations are not applied", s.Address, ErrNoTables, missing, len(all))
	}
	return nil
}

// Newer returns an error if the tables have migrations that this program does
// not know.
func (s *Store) Newer(ctx context.Context) error {
	all, err := s.Migrator.Migrations(ctx)
	if err != nil {
		return s.Clean(err)
	}
	if err := driver.Newer(all); err != nil {
		return hint.New("use the version of waybill that applied them, or set store.newer-tables if its changelog permits older programs",
			"%s: %w", s.Address, err)
	}
	return nil
}

// Clean returns an error of the store without its password.
func (s *Store) Clean(err error) error { return clean(s.Address, err) }

// newStore returns a store and hides the type of its transactions.
func newStore[T any](kind string, handle *sql.DB, db driver.Store[T], closers ...func() error) (*Store, error) {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	r := db.Driver()
	s := &Store{Roles: driver.Roles[any]{
		Relay: r.Relay, SinkGuard: r.SinkGuard, Watcher: r.Watcher, Migrator: r.Migrator, HistoryAudit: r.HistoryAudit,
		Backlogs: r.Backlogs, Restorer: r.Restorer, Audit: r.Audit, Rollups: r.Rollups,
		OutboxAdmin: r.OutboxAdmin, InboxRecords: r.InboxRecords, KeyRecords: r.KeyRecords, JobRecords: r.JobRecords,
	}, Kind: kind, SQL: handle, closers: closers}
	s.Send = func(ctx context.Context, evs ...waybill.Event) ([]outbox.Receipt, error) {
		var receipts []outbox.Receipt
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			var err error
			receipts, err = box.WriteEach(ctx, tx, evs...)
			return err
		})
		return receipts, err
	}
	s.Reconciler = func(jobs []reconcile.Job, cfg reconcile.Config) (Reconciler, error) {
		r, err := reconcile.New(db, jobs, cfg)
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	return s, nil
}

// newSQLStore is newStore for a store whose transactions are those of SQL.
func newSQLStore(kind string, handle *sql.DB, db driver.Store[*sql.Tx], closers ...func() error) (*Store, error) {
	s, err := newStore(kind, handle, db, closers...)
	if err == nil {
		s.InSQL = db.Driver()
	}
	return s, err
}

func openPostgres(ctx context.Context, cfg settings.Store) (*Store, error) {
	const form = "write postgres://user:password@host:port/database?sslmode=…"
	pc, err := pgxpool.ParseConfig(cfg.URL.Reveal())
	if err != nil { // err may quote the URL
		return nil, badURL("store.url", form, "rejected by PostgreSQL's driver")
	}
	if cfg.Connections > 0 {
		pc.MaxConns = int32(min(cfg.Connections, 1<<20))
	}
	pc.ConnConfig.ConnectTimeout = cfg.ConnectTimeout
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "waybill"
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, unreachable("store.url", cfg.URL, form, err)
	}
	db, err := pgstore.New(pool, pgstore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes, NotifyInterval: cfg.NotifyInterval, ListenURL: cfg.ListenURL.Reveal()})
	if err != nil {
		pool.Close()
		return nil, wrongNames(err)
	}
	handle := stdlib.OpenDBFromPool(pool)
	s, err := newStore[pgx.Tx](Postgres, handle, db, handle.Close, func() error { pool.Close(); return nil })
	if err == nil {
		s.InSQL = db.SQL(handle).Driver()
	}
	return s, err
}

// wrongNames reports a prefix, a schema or a number of lanes that the store
// does not accept.
func wrongNames(err error) error {
	return hint.New("change store.prefix, store.schema or store.lanes", "%w: %w", ErrBadSetting, err)
}

func openMySQL(cfg settings.Store, u *url.URL) (*Store, error) {
	const form = "write mysql://user:password@host:port/database"
	mc := mysql.NewConfig()
	mc.User = u.User.Username()
	mc.Passwd, _ = u.User.Password()
	mc.Net, mc.Addr = "tcp", u.Host
	if u.Port() == "" {
		mc.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	query := u.Query()
	if socket := query.Get("socket"); socket != "" {
		mc.Net, mc.Addr = "unix", socket
		query.Del("socket")
	}
	if u.Hostname() == "" && mc.Net == "tcp" {
		return nil, badURL("store.url", form, "missing host")
	}
	mc.DBName = strings.TrimPrefix(u.Path, "/")
	if mc.DBName == "" && cfg.Schema == "" {
		return nil, badURL("store.url", form, "missing database")
	}
	mc.Timeout = cfg.ConnectTimeout
	secure, err := brokerdriver.TakeTLS(query, nil)
	if err != nil {
		return nil, hint.New("ca, cert and key are files in PEM format", "%w: store.url: %w", ErrBadSetting, err)
	}
	if secure != nil && query.Has("tls") {
		return nil, badURL("store.url", "write either tls=…, or ca, cert, key and insecure", "two descriptions of TLS")
	}
	dsn := mc.FormatDSN()
	if len(query) > 0 {
		sep := "?"
		if strings.Contains(dsn, "?") {
			sep = "&"
		}
		dsn += sep + query.Encode()
	}
	mc, err = mysql.ParseDSN(dsn)
	if err != nil { // err may quote the URL
		return nil, badURL("store.url", form+"; the query parameters are those of go-sql-driver", "rejected by MySQL's driver")
	}
	mc.TLS = cmp.Or(secure, mc.TLS)
	mc.Logger = &mysql.NopLogger{} // the driver also returns the errors that it logs
	connector, err := mysql.NewConnector(mc)
	if err != nil {
		return nil, badURL("store.url", form, "rejected by MySQL's driver")
	}
	handle := sql.OpenDB(connector)
	handle.SetMaxOpenConns(cfg.Connections)
	handle.SetMaxIdleConns(8)
	db, err := mysqlstore.New(handle, mysqlstore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes, OneNode: cfg.OneNode})
	if err != nil {
		_ = handle.Close()
		return nil, wrongNames(err)
	}
	return newSQLStore(MySQL, handle, db, handle.Close)
}

func openSQLite(cfg settings.Store, create bool) (*Store, error) {
	path := strings.TrimPrefix(cfg.URL.Reveal(), "sqlite:")
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		if !strings.HasPrefix(rest, "/") {
			return nil, badURL("store.url", "write sqlite:FILE or sqlite:///FOLDER/FILE", "a host is not allowed")
		}
		path = rest
	}
	if path == "" {
		return nil, badURL("store.url", "write sqlite:FILE", "missing file name")
	}
	if _, err := os.Stat(path); !create && errors.Is(err, os.ErrNotExist) {
		return nil, hint.New("create it with: waybill migrate up", "file %s does not exist: %w", path, ErrNoTables)
	}
	conf := sqlitestore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes, BusyTimeout: cfg.BusyTimeout}
	if _, err := sqlitestore.New(new(sql.DB), conf); err != nil { // only validates the names
		return nil, wrongNames(err)
	}
	db, err := sqlitestore.Open(path, conf)
	if err != nil {
		return nil, hint.New("check that it is a SQLite file, and that the file and its folder are writable", "file %s %w: %w", path, ErrUnreachable, err)
	}
	return newSQLStore(SQLite, db.DB(), db, db.Close)
}

// MigrationSQL returns the script that creates a store's tables. It does not
// connect to the store.
func MigrationSQL(cfg settings.Store, from int) (string, error) {
	tables, err := offline(cfg)
	if err != nil {
		return "", err
	}
	return tables.(driver.Upgrader).UpgradeSQL(from), nil
}

// Script returns the statements of the migrations after a version, and those
// that remove all tables.
func Script(cfg settings.Store, from int) (up, down []string, err error) {
	tables, err := offline(cfg)
	if err != nil {
		return nil, nil, err
	}
	up, down = tables.Driver().Migrator.(driver.Scripter).Script(from)
	return up, down, nil
}

// offline returns the store without a connection.
func offline(cfg settings.Store) (driver.Store[*sql.Tx], error) {
	u, err := storeURL(cfg)
	if err != nil {
		return nil, err
	}
	var tables driver.Store[*sql.Tx]
	none := new(sql.DB) // the constructors do not connect
	switch u.Scheme {
	case Postgres:
		tables, err = pgstore.NewSQL(none, pgstore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes, NotifyInterval: -1})
	case MySQL:
		tables, err = mysqlstore.New(none, mysqlstore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes})
	default:
		tables, err = sqlitestore.New(none, sqlitestore.Config{Schema: cfg.Schema, Prefix: cfg.Prefix, Lanes: cfg.Lanes})
	}
	if err != nil {
		return nil, wrongNames(err)
	}
	return tables, nil
}
