//go:build linux || darwin

package cdc_test

import (
	"context"
	"database/sql"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// binlog is a client of the binary log that follows docs/sql.md: it reads the
// inserts into the outbox that have a type, row by row, and nothing else.
type binlog struct {
	columns []string
	mu      sync.Mutex
	seen    []map[string]any
	blank   []map[string]any // the inserts without a type
}

// published returns the inserts of an event.
func (b *binlog) published(id waybill.ID) []map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []map[string]any
	for _, row := range b.seen {
		// total returns the number of inserts with a type, and the inserts
		// without one.
		var logged waybill.ID
		if text, _ := row["id"].(string); copy(logged[:], text) == len(text) && logged == id {
			out = append(out, row)
		}
	}
	return out
}

// total returns how many inserts have a type, and those that have none.
func (b *binlog) total() (inserts int, blank []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen), slices.Clone(b.blank)
}

func (b *binlog) run(ctx context.Context, stream *replication.BinlogStreamer) error {
	for {
		ev, err := stream.GetEvent(ctx)
		if err != nil {
			return err
		}
		rows, ok := ev.Event.(*replication.RowsEvent)
		if !ok || string(rows.Table.Table) != "waybill_outbox" {
			continue
		}
		switch ev.Header.EventType {
		case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2, replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		default:
			continue
		}
		for _, values := range rows.Rows {
			row := make(map[string]any, len(values))
			for i, v := range values {
				row[b.columns[i]] = v
			}
			b.mu.Lock()
			if row["type"] == "" {
				b.blank = append(b.blank, row)
			} else {
				b.seen = append(b.seen, row)
			}
			b.mu.Unlock()
		}
	}
}

// followBinlog reads the log from its beginning until the test ends.
func withBinlog(t *testing.T, name string) (*mysql.Config, *sql.DB) {
	t.Helper()
	server := private.Start(t, name)
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	argv := append(slices.Clone(server.Argv), "--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	cmd.Dir = server.Data
	runAs(t, cmd, server)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	cfg, err := mysql.ParseDSN(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	awaitLog(t, "the server", func() bool { return db.PingContext(t.Context()) == nil })
	return cfg, db
}

func runAs(t *testing.T, cmd *exec.Cmd, server manage.Server) {
	t.Helper()
	if server.User == "" {
		return
	}
	account, err := user.Lookup(server.User)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.ParseUint(account.Uid, 10, 32)
	gid, _ := strconv.ParseUint(account.Gid, 10, 32)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

func awaitLog(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited in vain: " + what)
		}
	}
}

// TestBinlog follows docs/sql.md on MySQL and MariaDB: every event is in the
// log once, an absorbed event is not, and a delayed one is not until it is due
// and a Capturer has made it ready.
func followBinlog(t *testing.T, flavor string, cfg *mysql.Config, db *sql.DB) *binlog {
	t.Helper()
	b := &binlog{}
	rows, err := db.QueryContext(t.Context(), `SELECT column_name FROM information_schema.columns
 WHERE table_schema = DATABASE() AND table_name = 'waybill_outbox' ORDER BY ordinal_position`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		b.columns = append(b.columns, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	host, port, err := splitAddress(cfg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 100, Flavor: flavor, Host: host, Port: port, User: cfg.User, Password: cfg.Passwd,
	})
	t.Cleanup(syncer.Close)
	stream, err := syncer.StartSync(gomysql.Position{Name: "binlog.000001", Pos: 4})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.run(ctx, stream) }()
	t.Cleanup(func() {
		stopped := ctx.Err() != nil
		cancel()
		if err := <-ended; err != nil && !stopped && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return b
}

func splitAddress(address string) (string, uint16, error) {
	for i := len(address) - 1; i >= 0; i-- {
		if address[i] == ':' {
			port, err := strconv.ParseUint(address[i+1:], 10, 16)
			return address[:i], uint16(port), err
		}
	}
	return address, 3306, nil
}

// mark writes an event and waits until the log shows it, and so everything
// before it.
func TestBinlog(t *testing.T) {
	for name, flavor := range map[string]string{testserver.MySQLName: gomysql.MySQLFlavor, testserver.MariaDBName: gomysql.MariaDBFlavor} {
		t.Run(name, func(t *testing.T) {
			cfg, db := withBinlog(t, name)
			s, err := mysqlstore.New(db, mysqlstore.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			box, err := outbox.New[*sql.Tx](s, outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			log := followBinlog(t, flavor, cfg, db)
			write := func(evs ...waybill.Event) []outbox.Receipt {
				t.Helper()
				var out []outbox.Receipt
				err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) (err error) {
					out, err = box.WriteEach(ctx, tx, evs...)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			// The Capturer makes due events ready, and no others.
			mark := func() {
				t.Helper()
				last := write(waybill.Event{Type: "Mark", Payload: []byte(`{}`)})[0]
				awaitLog(t, "the last event is in the log", func() bool { return len(log.published(last.ID)) > 0 })
			}
			order := waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "A-1", DedupKey: "k", Payload: []byte(`{"n":1}`)}
			plain, late, keyed := order, order, order
			plain.DedupKey = ""
			late.DedupKey, late.Delay = "", time.Hour
			keyed.DedupKey, keyed.AvailableAt = "late", time.Now().Add(time.Hour)
			past := plain
			past.AvailableAt = time.Now().Add(-time.Hour)
			order.ID = waybill.NewID()
			order.ID[15] = 0 // the log leaves the zero out
			first := write(order)[0]
			order.ID = waybill.ID{}
			absorbed := write(order)[0]
			delayed := []outbox.Receipt{write(late)[0], write(keyed)[0]}
			mixed := write(plain, late, past, plain)
			delayed = append(delayed, mixed[1])
			overdue := write(past)[0]
			mark()

			seen := log.published(first.ID)
			if len(seen) != 1 || seen[0]["type"] != "OrderPlaced" || seen[0]["aggregate_id"] != "A-1" || seen[0]["dedup_key"] != "k" {
				t.Errorf("the log shows %v", seen)
			}
			if absorbed.Outcome != outbox.Duplicate || absorbed.ID != first.ID {
				t.Errorf("the same key again: %+v", absorbed)
			}
			for _, r := range []outbox.Receipt{mixed[0], mixed[2], mixed[3], overdue} {
				if seen := log.published(r.ID); len(seen) != 1 || seen[0]["available_at"] != nil {
					t.Errorf("an event that may be published is in the log %d times: %v", len(seen), seen)
				}
			}
			for _, r := range delayed {
				if seen := log.published(r.ID); len(seen) != 0 {
					t.Errorf("an event that is due in an hour is in the log: %v", seen)
				}
				rec, err := s.Driver().OutboxAdmin.Find(t.Context(), r.ID)
				if err != nil || len(rec) != 1 || rec[0].State != store.Delayed {
					t.Errorf("the delayed event: %+v, %v", rec, err)
				}
			}
			inserts, blank := log.total()
			if inserts != 6 {
				t.Errorf("the log shows %d inserts with a type, want 6", inserts)
			}
			for _, row := range blank {
				if payload, _ := row["payload"].([]byte); len(payload) > 0 || row["headers"] != nil || row["dedup_key"] != nil {
					t.Errorf("an insert without a type shows more than a place: %v", row)
				}
			}

			// The Capturer makes ready what is due, and nothing else.
			ops, err := admin.NewOutbox(s, admin.Config{})
			if err != nil {
				t.Fatal(err)
			}
			capturer, err := ops.Capturer(admin.Capture{Interval: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- capturer.Run(ctx) }()
			soon := write(waybill.Event{Type: "Soon", Delay: time.Second, Payload: []byte(`{}`)})[0]
			awaitLog(t, "an event of a second is in the log", func() bool { return len(log.published(soon.ID)) > 0 })
			for _, r := range delayed {
				if seen := log.published(r.ID); len(seen) != 0 {
					t.Errorf("the Capturer has made an event ready that is due in an hour: %v", seen)
				}
			}
			if _, err := db.ExecContext(t.Context(), `UPDATE waybill_delayed SET due_at = UTC_TIMESTAMP(6)`); err != nil {
				t.Fatal(err)
			}
			for _, r := range delayed {
				awaitLog(t, "a delayed event is in the log", func() bool { return len(log.published(r.ID)) > 0 })
			}
			mark()
			stop()
			if err := <-ran; err != nil {
				t.Error(err)
			}
			for _, r := range append(delayed, soon) {
				if seen := log.published(r.ID); len(seen) != 1 {
					t.Errorf("a delayed event is in the log %d times: %v", len(seen), seen)
				}
			}
			at, _ := log.published(soon.ID)[0]["available_at"].(string)
			created, _ := log.published(soon.ID)[0]["created_at"].(string)
			from, err1 := time.Parse("2006-01-02 15:04:05.999999", created)
			to, err2 := time.Parse("2006-01-02 15:04:05.999999", at)
			if err1 != nil || err2 != nil || to.Sub(from) < time.Second {
				t.Errorf("written at %q, due at %q", created, at)
			}
			if inserts, _ := log.total(); inserts != 11 {
				t.Errorf("the log shows %d inserts with a type, want 11", inserts)
			}
		})
	}
}
