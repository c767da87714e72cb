package mysqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// behind makes connections whose sessions have a clock one hour behind. A
// session's clock stands still once it is set, so it is set whenever the pool
// hands out the connection.
type behind struct{ driver.Connector }

func (b behind) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := b.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := conn.(mysqlConn)
	if !ok {
		return nil, fmt.Errorf("the driver's connection is a %T", conn)
	}
	c := behindConn{inner}
	return c, c.setClock(ctx)
}

// mysqlConn lists the interfaces of the driver's connections.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type behindConn struct{ mysqlConn }

func (c behindConn) setClock(ctx context.Context) error {
	at := float64(time.Now().Add(-time.Hour).UnixMicro()) / 1e6
	_, err := c.ExecContext(ctx, fmt.Sprintf("SET SESSION timestamp = %.6f", at), nil)
	return err
}

// ResetSession implements [driver.SessionResetter].
func (c behindConn) ResetSession(ctx context.Context) error {
	if err := c.mysqlConn.ResetSession(ctx); err != nil {
		return err
	}
	return c.setClock(ctx)
}

// TestClockBehind: the server's clock is one hour behind this process's.
// Nothing is delivered before its time by the server's clock, and the leases of
// consumers and keys follow the server's clock.
func TestClockBehind(t *testing.T) { onBoth(t, testClockBehind) }

func testClockBehind(t *testing.T) {
	h := drivertest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: func(t *testing.T) drivertest.Instance[*sql.Tx] {
			_, name := openDB(t, nil)
			connector, err := mysql.NewConnector(configOf(t, name))
			if err != nil {
				t.Fatal(err)
			}
			db := sql.OpenDB(behind{connector})
			t.Cleanup(func() { _ = db.Close() })
			return instanceOf(t, migrated(t, db), db, nil)
		},
	}
	t.Run("relay", func(t *testing.T) { relaytest.RunBehind(t, h) })
	if !testserver.Full() {
		// The suites below take minutes on MySQL; on PostgreSQL they always
		// run.
		return
	}
	t.Run("inbox", func(t *testing.T) { inboxtest.Run(t, h) })
	t.Run("keys", func(t *testing.T) { idemtest.Run(t, h) })
}
