package memstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// OpenDB is [sql.Open] for a database whose transactions stores of [OverDB]
// follow. A driver.Conn that db.Conn's Raw shows is not the driver's own.
func OpenDB(driverName, dataSource string) (*sql.DB, error) {
	plain, err := sql.Open(driverName, dataSource)
	if err != nil {
		return nil, err
	}
	d := plain.Driver()
	if err := plain.Close(); err != nil { // it has no connection yet
		return nil, err
	}
	var base sqldriver.Connector = dsnConnector{d, dataSource}
	if opener, ok := d.(sqldriver.DriverContext); ok {
		if base, err = opener.OpenConnector(dataSource); err != nil {
			return nil, err
		}
	}
	return sql.OpenDB(Connector(base)), nil
}

// Connector returns a connector for [sql.OpenDB] that opens the connections of
// base, and whose transactions stores of [OverDB] follow. The driver must
// support contexts: driver.ConnBeginTx and driver.ExecerContext.
func Connector(base sqldriver.Connector) sqldriver.Connector { return &connector{base} }

// dsnConnector is a connector for drivers that have none.
type dsnConnector struct {
	driver     sqldriver.Driver
	dataSource string
}

func (c dsnConnector) Connect(context.Context) (sqldriver.Conn, error) {
	return c.driver.Open(c.dataSource)
}
func (c dsnConnector) Driver() sqldriver.Driver { return c.driver }

type connector struct{ sqldriver.Connector }

// followedDriver marks databases of a connector.
type followedDriver struct{ sqldriver.Driver }

func (c *connector) Driver() sqldriver.Driver { return followedDriver{c.Connector.Driver()} }

func (c *connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	begins, ok1 := conn.(sqldriver.ConnBeginTx)
	execs, ok2 := conn.(sqldriver.ExecerContext)
	if !ok1 || !ok2 {
		err := fmt.Errorf("memstore: the connections of driver %T have no BeginTx or no ExecContext", c.Connector.Driver())
		return nil, errors.Join(err, conn.Close())
	}
	return &followedConn{Conn: conn, begins: begins, execs: execs}, nil
}

// Close closes the base connector, if it can be closed.
func (c *connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// joinText is the text of statements whose only argument is a [join]. They
// never reach the database; another database that gets one by mistake can parse
// it.
const joinText = "SELECT 1 /* events of this transaction */"

// join asks a connection for the store's part of its transaction. The
// connection sets txn.
type join struct {
	tables *tables
	txn    *txn
}

// Value implements [sqldriver.Valuer]: drivers without a store fail to send it.
func (*join) Value() (sqldriver.Value, error) { return nil, errNotFollowed }

// followedConn is a connection that knows its open transaction. database/sql
// never calls two methods at once.
type followedConn struct {
	sqldriver.Conn
	begins sqldriver.ConnBeginTx
	execs  sqldriver.ExecerContext
	tx     *followedTx
}

var (
	_ sqldriver.ConnBeginTx        = (*followedConn)(nil)
	_ sqldriver.ConnPrepareContext = (*followedConn)(nil)
	_ sqldriver.ExecerContext      = (*followedConn)(nil)
	_ sqldriver.QueryerContext     = (*followedConn)(nil)
	_ sqldriver.NamedValueChecker  = (*followedConn)(nil)
	_ sqldriver.Pinger             = (*followedConn)(nil)
	_ sqldriver.SessionResetter    = (*followedConn)(nil)
	_ sqldriver.Validator          = (*followedConn)(nil)
)

func (c *followedConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	tx, err := c.begins.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.tx = &followedTx{Tx: tx, conn: c}
	return c.tx, nil
}

func (c *followedConn) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if len(args) == 1 {
		if j, ok := args[0].Value.(*join); ok {
			return sqldriver.ResultNoRows, c.tx.join(j)
		}
	}
	result, err := c.execs.ExecContext(ctx, query, args)
	if err == nil && len(args) == 0 && c.tx != nil {
		err = c.tx.ran(query)
	}
	return result, err
}

// PrepareContext returns statements that the connection has to see as one that
// runs as text.
func (c *followedConn) PrepareContext(ctx context.Context, query string) (sqldriver.Stmt, error) {
	if verb, _ := savepointOf(query); verb != "" || query == joinText {
		return textStmt{c, query}, nil
	}
	if p, ok := c.Conn.(sqldriver.ConnPrepareContext); ok {
		return p.PrepareContext(ctx, query)
	}
	return c.Prepare(query)
}

func (c *followedConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if q, ok := c.Conn.(sqldriver.QueryerContext); ok {
		return q.QueryContext(ctx, query, args)
	}
	return nil, sqldriver.ErrSkip
}

func (c *followedConn) CheckNamedValue(v *sqldriver.NamedValue) error {
	if _, ok := v.Value.(*join); ok {
		return nil
	}
	if checker, ok := c.Conn.(sqldriver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return sqldriver.ErrSkip
}

func (c *followedConn) Ping(ctx context.Context) error {
	if p, ok := c.Conn.(sqldriver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

func (c *followedConn) ResetSession(ctx context.Context) error {
	if r, ok := c.Conn.(sqldriver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *followedConn) IsValid() bool {
	v, ok := c.Conn.(sqldriver.Validator)
	return !ok || v.IsValid()
}

// textStmt is a prepared statement of [followedConn] that runs as text.
type textStmt struct {
	conn  *followedConn
	query string
}

var errNoContext = errors.New("memstore: the statement needs a context")

func (textStmt) Close() error                                     { return nil }
func (textStmt) NumInput() int                                    { return -1 }
func (textStmt) Exec([]sqldriver.Value) (sqldriver.Result, error) { return nil, errNoContext }
func (textStmt) Query([]sqldriver.Value) (sqldriver.Rows, error)  { return nil, errNoContext }

func (s textStmt) ExecContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

func (s textStmt) QueryContext(ctx context.Context, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}
