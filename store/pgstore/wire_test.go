package pgstore_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// wire is a proxy for a pool's connections: it counts what is sent, and can cut
// the connection at a chosen moment.
type wire struct {
	sent atomic.Int64 // writes to the socket; pgx makes one for each round trip
	cut  atomic.Int32
}

// Where the connection is cut, once.
const (
	whole       = iota
	beforeSend  // the next request never reaches the server
	beforeReply // the next request reaches the server, and its reply is lost
	replyLost
)

var errCut = errors.New("the line is cut")

// openWire returns a pool whose connections go through a wire.
func openWire(t testing.TB, change func(*pgxpool.Config)) (*pgxpool.Pool, *wire) {
	w := &wire{}
	pool := openPool(t, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &wiredConn{Conn: conn, wire: w}, nil
		}
		if change != nil {
			change(c)
		}
	})
	return pool, w
}

type wiredConn struct {
	net.Conn
	wire *wire
	dead atomic.Bool
}

func (c *wiredConn) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return 0, errCut
	}
	if c.wire.cut.CompareAndSwap(beforeSend, whole) {
		c.dead.Store(true)
		_ = c.Close()
		return 0, errCut
	}
	c.wire.sent.Add(1)
	n, err := c.Conn.Write(p)
	c.wire.cut.CompareAndSwap(beforeReply, replyLost)
	return n, err
}

func (c *wiredConn) Read(p []byte) (int, error) {
	if c.dead.Load() {
		return 0, errCut
	}
	// Wait until the server has answered, then lose the answer.
	n, err := c.Conn.Read(p)
	if err == nil && c.wire.cut.CompareAndSwap(replyLost, whole) {
		c.dead.Store(true)
		_ = c.Close()
		return 0, errCut
	}
	return n, err
}
