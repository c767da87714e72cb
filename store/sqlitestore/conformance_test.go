package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/storematrix"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storematrix.Run(t, harness(func(t *testing.T, path string) *sqlitestore.Store {
		return openAt(t, path, sqlitestore.Config{})
	}))
}

// TestConformanceNew runs the suite over a handle of the caller's own with
// neither _txlock nor a busy timeout, and with one connection for each
// transaction and one more.
func TestConformanceNew(t *testing.T) {
	if !testserver.Full() {
		t.Skip("make test-stores-full runs it")
	}
	h := harness(func(t *testing.T, path string) *sqlitestore.Store {
		s := over(t, path, "_journal_mode=WAL", sqlitestore.Config{
			// SQLite's queue for the write lock is not fair, and the machine
			// may be busy.
			Prefix: "other_", BusyTimeout: 30 * time.Second,
		})
		if _, err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	})
	storematrix.Run(t, h)
}

// features are the features of SQLite. There is one writer, so no transaction
// can commit late.
var features = drivertest.Features{
	PlainSQL: true, SavepointSQL: true, SecondStore: true, ForeignTx: true, StoredHeaders: true, OneLane: true, OneWriter: true,
}

func harness(open func(t *testing.T, path string) *sqlitestore.Store) drivertest.Harness[*sql.Tx] {
	return drivertest.Harness[*sql.Tx]{
		Name: "sqlitestore", Features: features,
		Open: func(t *testing.T) drivertest.Instance[*sql.Tx] {
			path := filepath.Join(t.TempDir(), "suite.db")
			db := open(t, path)
			if _, err := db.DB().ExecContext(t.Context(), `CREATE TABLE business (note TEXT NOT NULL)`); err != nil {
				t.Fatal(err)
			}
			return instance(t, db, func() driver.Roles[*sql.Tx] { return open(t, path).Driver() })
		},
	}
}

func instance(t *testing.T, db *sqlitestore.Store, second func() driver.Roles[*sql.Tx]) drivertest.Instance[*sql.Tx] {
	prefix := tablePrefix(t, db)
	return drivertest.Instance[*sql.Tx]{
		DB: db.Driver(), Second: second,
		Insert: func(ctx context.Context, tx *sql.Tx, note string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO business (note) VALUES (?)`, note)
			return err
		},
		Count: func(ctx context.Context, note string) (n int, err error) {
			err = db.DB().QueryRowContext(ctx, `SELECT count(*) FROM business WHERE note = ?`, note).Scan(&n)
			return n, err
		},
		Begin: func(ctx context.Context) (drivertest.Foreign[*sql.Tx], error) {
			tx, err := db.DB().BeginTx(ctx, nil)
			if err != nil {
				return drivertest.Foreign[*sql.Tx]{}, err
			}
			return drivertest.Foreign[*sql.Tx]{Tx: tx, Commit: tx.Commit, Rollback: func() error {
				if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
					return err
				}
				return nil
			}}, nil
		},
		Exec: func(ctx context.Context, tx *sql.Tx, text string) error {
			_, err := tx.ExecContext(ctx, text)
			return err
		},
		InsertPlain: func(ctx context.Context, p drivertest.Plain) error {
			names, args := []string{"type", "payload"}, []any{p.Type, string(p.Payload)}
			for name, value := range map[string]string{
				"aggregate_type": p.AggregateType, "aggregate_id": p.AggregateID, "tenant_id": p.TenantID,
			} {
				if value != "" {
					names, args = append(names, name), append(args, value)
				}
			}
			_, err := db.DB().ExecContext(ctx, `INSERT INTO `+prefix+`outbox (`+strings.Join(names, ", ")+`) VALUES (?`+
				strings.Repeat(", ?", len(args)-1)+`)`, args...)
			return err
		},
		SetHeaders: func(ctx context.Context, id waybill.ID, text string) error {
			for _, table := range []string{"outbox", "delayed"} {
				if _, err := db.DB().ExecContext(ctx, `UPDATE `+prefix+table+` SET headers = ? WHERE id = ?`, text, id[:]); err != nil {
					return err
				}
			}
			return nil
		},
		Pending: func(ctx context.Context) ([]store.Row, error) { return pending(ctx, db, prefix) },
		ExpireNode: func(ctx context.Context, id waybill.ID) error {
			_, err := db.DB().ExecContext(ctx, `UPDATE `+prefix+`node SET expires_at = 0 WHERE id = ?`, id[:])
			return err
		},
	}
}

// tablePrefix returns the prefix of the store's tables.
func tablePrefix(t *testing.T, db *sqlitestore.Store) string {
	t.Helper()
	var name string
	err := db.DB().QueryRowContext(t.Context(), `SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE '%outbox'`).Scan(&name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(name, "outbox")
}

func pending(ctx context.Context, db *sqlitestore.Store, prefix string) ([]store.Row, error) {
	columns := "lane, seq, " + strings.Join(eventrow.Columns(), ", ") + ", created_at"
	rows, err := db.DB().QueryContext(ctx, `SELECT `+columns+`, available_at, 0, 0, 0, NULL FROM `+prefix+`outbox
UNION ALL SELECT `+columns+`, due_at, attempts, replay, holds, last_error FROM `+prefix+`delayed ORDER BY seq`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []store.Row
	for rows.Next() {
		var r eventrow.Record
		if err := rows.Scan(r.DelayedDest()...); err != nil {
			return nil, err
		}
		list = append(list, r.Decode())
	}
	return list, rows.Err()
}
