package mysqlstore_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/outbox"
)

// TestPreparedTransaction: a prepared XA transaction may still commit, even
// after a crash of the server. Until it has ended, OpenWriters names it and
// Committed returns no answer.
func TestPreparedTransaction(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		server := private.Start(t, serverOf(t))
		cfg, err := mysql.ParseDSN(server.DSN)
		if err != nil {
			t.Fatal(err)
		}
		cfg.DBName = "prepared"
		root := pool(t, &mysql.Config{User: cfg.User, Passwd: cfg.Passwd, Net: cfg.Net, Addr: cfg.Addr, AllowNativePasswords: true})
		exec(t, root, "CREATE DATABASE prepared")
		db := pool(t, cfg)
		s := newStore(t, db)
		if _, err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		box, err := outbox.New(s, outbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for end, want := range map[string]bool{"COMMIT": true, "ROLLBACK": false} {
			id := waybill.NewID()
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			exec(t, conn, "XA START '"+end+"'")
			exec(t, conn, `INSERT INTO waybill_outbox (id, type, aggregate_type, aggregate_id, payload)
VALUES (?, 'Tested', 'thing', 'a', X'7b7d')`, id[:])
			exec(t, conn, "XA END '"+end+"'")
			exec(t, conn, "XA PREPARE '"+end+"'")
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
			_ = conn.Close()
			undecided := func(when string) {
				t.Helper()
				if committed, err := box.Committed(t.Context(), id); !errors.Is(err, waybill.ErrUncertain) {
					t.Errorf("%s, %s: Committed returned %v, %v, want ErrUncertain", end, when, committed, err)
				}
				if w, err := s.Driver().Relay.OpenWriters(t.Context()); err != nil || !w.Unknown && len(w.Open) == 0 {
					t.Errorf("%s, %s: OpenWriters returned %+v, %v, want an open transaction", end, when, w, err)
				}
			}
			undecided("while it is prepared")
			if err := errors.Join(server.Kill(t.Context()), server.Restart(t.Context())); err != nil {
				t.Fatal(err)
			}
			drop(t, db)
			undecided("after a crash")
			exec(t, db, "XA "+end+" '"+end+"'")
			if committed, err := box.Committed(t.Context(), id); err != nil || committed != want {
				t.Errorf("after XA %s: Committed returned %v, %v, want %v", end, committed, err, want)
			}
		}
	})
}

// drop closes the idle connections of a pool whose server is gone.
func drop(t *testing.T, db *sql.DB) {
	t.Helper()
	db.SetMaxIdleConns(-1)
	db.SetMaxIdleConns(8)
}
