package mysqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// cutter makes connections that break at a COMMIT.
type cutter struct {
	armed atomic.Bool
	// forward reports whether the COMMIT still reaches the server.
	forward atomic.Bool
	// hang reports that the server keeps its end of the connection, which is in
	// kept.
	hang atomic.Bool
	kept chan net.Conn
}

func newCutter() *cutter { return &cutter{kept: make(chan net.Conn, 1)} }

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cutConn{Conn: conn, cutter: c}, nil
}

type cutConn struct {
	net.Conn
	cutter *cutter
	cut    atomic.Bool
	kept   atomic.Bool
}

// Write forwards packets. A COM_QUERY packet has the command 3 after its header
// of four bytes.
func (c *cutConn) Write(p []byte) (int, error) {
	if len(p) > 5 && p[4] == 3 && bytes.Equal(p[5:], []byte("COMMIT")) && c.cutter.armed.CompareAndSwap(true, false) {
		c.cut.Store(true)
		if c.cutter.forward.Load() {
			if n, err := c.Conn.Write(p); err != nil {
				return n, err
			}
			// The response has arrived when its first byte can be read; it is
			// dropped.
			_, _ = c.Conn.Read(make([]byte, 1))
		}
		if c.cutter.hang.Load() {
			c.kept.Store(true)
			c.cutter.kept <- c.Conn
		} else {
			_ = c.Conn.Close()
		}
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.cut.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(p)
}

func (c *cutConn) Close() error {
	if c.kept.Load() {
		return nil
	}
	return c.Conn.Close()
}

// settleDoubt polls until the store is certain.
func settleDoubt(t *testing.T, s *mysqlstore.Store, id waybill.ID) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := s.Driver().Outbox.Committed(ctx, id)
		if err == nil {
			return yes
		}
		if !errors.Is(err, waybill.ErrUncertain) {
			t.Fatal(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the outcome stays uncertain")
		}
	}
}

// lateEvent returns a delayed event, whose row is in another table.
func lateEvent() waybill.Event {
	ev := event("a")
	ev.Delay = time.Hour
	return ev
}

// A commit whose response was lost is uncertain, and Committed resolves it: by
// the row, if the commit arrived, and by its absence, if it did not.
func TestLostCommit(t *testing.T) { onBoth(t, testLostCommit) }

func testLostCommit(t *testing.T) {
	cut := newCutter()
	s, db := openStore(t, func(c *mysql.Config) { c.DialFunc = cut.dial })
	box := newBox(t, s)
	for _, arrives := range []bool{true, false} {
		for _, ev := range []waybill.Event{event("a"), lateEvent(), keyed(fmt.Sprint(arrives))} {
			before := ask[int](t, db, "SELECT COUNT(*) FROM business")
			cut.forward.Store(arrives)
			err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				exec(t, tx, "INSERT INTO business (note) VALUES ('x')")
				cut.armed.Store(true)
				return box.Write(ctx, tx, ev)
			})
			var uncertain *outbox.UncertainError
			if !errors.As(err, &uncertain) || !errors.Is(err, waybill.ErrUncertain) {
				t.Fatalf("InTx: %v, want an UncertainError", err)
			}
			if len(uncertain.Events) != 1 || uncertain.Events[0] != ev.ID {
				t.Errorf("uncertain about %v, want %v", uncertain.Events, ev.ID)
			}
			if got := settleDoubt(t, s, ev.ID); got != arrives {
				t.Errorf("Committed is %v, but whether the COMMIT arrived is %v", got, arrives)
			}
			if n := ask[int](t, db, "SELECT COUNT(*) FROM business") - before; (n == 1) != arrives {
				t.Errorf("%d business rows, whether the COMMIT arrived is %v", n, arrives)
			}
		}
	}
}

// While the server still has the transaction open, because it has not noticed
// the loss of the client, the outcome is uncertain; after its end it is
// certain.
func TestOpenTransactionIsUncertain(t *testing.T) { onBoth(t, testOpenTransactionIsUncertain) }

func testOpenTransactionIsUncertain(t *testing.T) {
	cut := newCutter()
	s, _ := openStore(t, func(c *mysql.Config) { c.DialFunc = cut.dial })
	box := newBox(t, s)
	for _, ev := range []waybill.Event{event("a"), lateEvent(), keyed("k")} {
		cut.hang.Store(true)
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			if err := box.Write(ctx, tx, ev); err != nil {
				return err
			}
			cut.armed.Store(true)
			return nil
		})
		if !errors.Is(err, waybill.ErrUncertain) {
			t.Fatalf("InTx: %v, want ErrUncertain", err)
		}
		held := <-cut.kept
		for range 3 {
			if yes, err := s.Driver().Outbox.Committed(t.Context(), ev.ID); !errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("Committed is %v, %v, want ErrUncertain: the transaction is open", yes, err)
			}
		}
		// Other transactions do not matter.
		if yes, err := s.Driver().Outbox.Committed(t.Context(), waybill.NewID()); yes || err != nil {
			t.Errorf("Committed of another event: %v, %v", yes, err)
		}
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		if settleDoubt(t, s, ev.ID) {
			t.Error("an event was committed without a COMMIT")
		}
	}
}

// A connection that was killed before the commit rolled back: the outcome is
// certain, or can be resolved.
func TestKilledConnection(t *testing.T) { onBoth(t, testKilledConnection) }

func testKilledConnection(t *testing.T) {
	s, db := openStore(t, nil)
	box := newBox(t, s)
	for _, ev := range []waybill.Event{event("a"), lateEvent(), keyed("k")} {
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			var id int64
			if err := tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				return err
			}
			if err := box.Write(ctx, tx, ev); err != nil {
				return err
			}
			exec(t, db, fmt.Sprint("KILL CONNECTION ", id))
			return nil
		})
		if err == nil {
			t.Fatal("InTx succeeded on a connection that was killed")
		}
		var uncertain *outbox.UncertainError
		if errors.Is(err, waybill.ErrUncertain) != errors.As(err, &uncertain) {
			t.Errorf("InTx: %v", err)
		}
		if settleDoubt(t, s, ev.ID) {
			t.Error("an event was committed without a COMMIT")
		}
	}
	if rows := ready(t, s); len(rows) != 0 {
		t.Errorf("%d events are ready, want none", len(rows))
	}
}
