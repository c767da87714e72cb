package sqlitestore_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func TestOpenSettings(t *testing.T) {
	db := open(t, sqlitestore.Config{BusyTimeout: 3 * time.Second})
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "busy_timeout": "3000", "foreign_keys": "1",
	} {
		var got string
		if err := db.DB().QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", pragma, got, err, want)
		}
	}
}

// TestOpenPaths opens files whose names have a meaning in a URI.
func TestOpenPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"plain.db", "a b.db", "what?.db", "100%.db", "%41.db", "x#y.db", "a&b=c.db", "ä.db", "a+b.db", "-.db", "a:b.db"} {
		path := filepath.Join(dir, name)
		db := openAt(t, path, sqlitestore.Config{})
		write(t, newBox(t, db.Driver().Outbox), placed("1"))
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if base := strings.TrimSuffix(strings.TrimSuffix(e.Name(), "-wal"), "-shm"); !strings.HasSuffix(base, ".db") {
			t.Errorf("an unexpected file: %q", e.Name())
		}
	}
}

// TestOpenRelative changes the working directory between two connections: both
// must open the same file.
func TestOpenRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	db := openAt(t, "relative.db", sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	t.Chdir(t.TempDir())
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := box.Write(ctx, tx, placed("1")); err != nil {
			return err
		}
		fetch(t, db.Driver().Relay) // needs a connection of its own
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for path, hint := range map[string]string{
		"":                       "memstore",
		":memory:":               "memstore",
		"file:x.db":              "use New",
		"/nowhere/at/all/x.db":   "directory must exist",
		t.TempDir():              "writable",
		"file::memory:?mode=rwc": "use New",
	} {
		db, err := sqlitestore.Open(path, sqlitestore.Config{})
		if err == nil {
			_ = db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("Open(%q): %v, want a hint: %q", path, err, hint)
		}
	}
}

func TestConfig(t *testing.T) {
	_, err := sqlitestore.Open(filepath.Join(t.TempDir(), "x.db"), sqlitestore.Config{
		Schema: "other", Prefix: "no good", Lanes: 32, BusyTimeout: 1000 * time.Hour,
	})
	want := `sqlitestore: Config.Schema: "other": the outbox must be in the file of the connection, main; commits are not atomic across attached files
Config.Prefix: "no good" is not a plain name (letters, digits and underscores, no digit first)
Config.Lanes: 32: SQLite has one writer, so the outbox has one lane
Config.BusyTimeout: 1000h0m0s exceeds the maximum of 24h0m0s`
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
	if _, err := sqlitestore.New(nil, sqlitestore.Config{}); err == nil {
		t.Error("no database was accepted")
	}
	handle, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, handle)
	if _, err := sqlitestore.New(handle, sqlitestore.Config{Prefix: "sqlite_"}); err == nil {
		t.Error("a prefix that SQLite keeps for itself was accepted")
	}
	if _, err := sqlitestore.New(handle, sqlitestore.Config{Schema: "main", Prefix: "x_", Lanes: 1, BusyTimeout: -1}); err != nil {
		t.Error(err)
	}
	if handle.Stats().OpenConnections != 0 {
		t.Error("New has touched the database")
	}
}

// TestUnfit passes databases to New that are not safe for an outbox: every
// method returns an error with a hint.
func TestUnfit(t *testing.T) {
	for settings, path := range map[string]string{
		"_journal_mode=DELETE": filepath.Join(t.TempDir(), "x.db"),
		"mode=memory":          "x",
	} {
		db := over(t, path, settings, sqlitestore.Config{})
		box := newBox(t, db.Driver().Outbox)
		for name, use := range uses(t, db) {
			if err := use(); err == nil || !strings.Contains(err.Error(), "want wal") {
				t.Errorf("%s: %s: %v, want a hint", settings, name, err)
			}
		}
		tx, err := db.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Write(t.Context(), tx, placed("1")); err == nil || !strings.Contains(err.Error(), "want wal") {
			t.Errorf("%s: Write: %v, want a hint", settings, err)
		}
		_ = tx.Rollback()
		if _, err := db.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "want wal") {
			t.Errorf("%s: Migrate: %v, want a hint", settings, err)
		}
	}
}

// TestNoTables uses a file without the tables.
func TestNoTables(t *testing.T) {
	db := over(t, filepath.Join(t.TempDir(), "x.db"), deferred, sqlitestore.Config{})
	for name, use := range uses(t, db) {
		if err := use(); err == nil || !strings.Contains(err.Error(), "call Migrate") {
			t.Errorf("%s: %v, want a hint", name, err)
		}
	}
	tx, err := db.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // the test is over then
	if err := newBox(t, db.Driver().Outbox).Write(t.Context(), tx, placed("1")); err == nil || !strings.Contains(err.Error(), "call Migrate") {
		t.Errorf("Write: %v, want a hint", err)
	}
	if list, err := db.Migrations(t.Context()); err != nil || len(list) == 0 || !list[0].AppliedAt.IsZero() {
		t.Errorf("Migrations are %v, %v", list, err)
	}
}

// uses are the methods of a store that need the tables.
func uses(t *testing.T, db *sqlitestore.Store) map[string]func() error {
	ctx := t.Context()
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	ids := []waybill.ID{waybill.NewID()}
	return map[string]func() error{
		"Begin":     func() error { _, err := db.Driver().Outbox.Begin(ctx, nil); return err },
		"Fetch":     func() error { _, err := db.Driver().Relay.Fetch(ctx, []driver.Cursor{{}}, 1); return err },
		"Sweep":     func() error { _, err := db.Driver().Relay.Sweep(ctx, []driver.Cursor{{}}, 1); return err },
		"Load":      func() error { _, err := db.Driver().Relay.Load(ctx, []store.Key{{Seq: 1}}); return err },
		"Due":       func() error { _, err := db.Driver().Relay.Due(ctx, []int{0}, 1); return err },
		"Committed": func() error { _, err := db.Driver().Outbox.Committed(ctx, waybill.NewID()); return err },
		"Heartbeat": func() error { _, err := db.Driver().Relay.Heartbeat(ctx, node, time.Minute); return err },
		"Acquire":   func() error { _, err := db.Driver().Relay.Acquire(ctx, node, []int{0}, 1); return err },
		"Release":   func() error { return db.Driver().Relay.Release(ctx, []driver.Lease{{}}, false) },
		"Leave":     func() error { return db.Driver().Relay.Leave(ctx, node) },
		"Settle":    func() error { _, err := db.Driver().Relay.Settle(ctx, driver.Settlement{}); return err },
		"Holds":     func() error { _, err := db.Driver().Relay.Holds(ctx, []int{0}); return err },
		"Follow": func() error {
			_, err := db.Driver().Relay.FetchAggregate(ctx, store.Aggregate{ID: "x"}, driver.Cursor{}, 1)
			return err
		},
		"Urgent": func() error { _, err := db.Driver().Relay.FetchPriority(ctx, []driver.Cursor{{}}, 1); return err },
		"Finish": func() error {
			tx, err := db.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() //nolint:errcheck // nothing was written
			return db.Driver().Finisher.Finish(ctx, tx, []waybill.Delivery{{}})
		},
		"Stats": func() error { _, err := db.Driver().OutboxAdmin.Stats(ctx); return err },
		"Count": func() error { _, err := db.Driver().OutboxAdmin.Count(ctx, store.Dead, store.Filter{}); return err },
		"List": func() error {
			_, err := db.Driver().OutboxAdmin.List(ctx, store.Dead, store.Filter{}, 0, 1)
			return err
		},
		"Find":         func() error { _, err := db.Driver().OutboxAdmin.Find(ctx, ids[0]); return err },
		"Replay":       func() error { _, err := db.Driver().OutboxAdmin.Replay(ctx, ids); return err },
		"Discard":      func() error { _, err := db.Driver().OutboxAdmin.Discard(ctx, ids); return err },
		"Unblock":      func() error { _, err := db.Driver().OutboxAdmin.Unblock(ctx, ids); return err },
		"Purge":        func() error { _, err := db.Driver().OutboxAdmin.Purge(ctx, store.Dead, 0, 1); return err },
		"PurgeWritten": func() error { _, err := db.Driver().OutboxAdmin.PurgeWritten(ctx, 0, 1); return err },
		"Tidy":         func() error { return db.Driver().OutboxAdmin.Tidy(ctx, 0) },
		"SetLanes":     func() error { return db.Driver().OutboxAdmin.SetLanes(ctx, 1) },
	}
}

func TestVersion(t *testing.T) {
	for version, safe := range map[string]bool{
		"3.51.3": true, "3.51.10": true, "3.52.0": true, "4.0.0": true, "3.54.1": true, "3.51.3.1": true, "4": true,
		"3.51.2": false, "3.40.1": false, "3.9.99": false, "2.99.99": false, "3.51": false, "": false, "new": false,
	} {
		if err := sqlitestore.CheckVersion(version); (err == nil) != safe {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// TestClose: a store over a handle of the caller's own leaves the handle open.
func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	handle, err := sql.Open("sqlite", "file:"+path+"?"+deferred)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, handle)
	db, err := sqlitestore.New(handle, sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := newBox(t, db.Driver().Outbox)
	write(t, box, placed("1"))
	write(t, box, placed("1"))
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if err := handle.PingContext(t.Context()); err != nil {
		t.Errorf("the caller's handle: %v", err)
	}
	if db.DB() != handle {
		t.Error("DB is another handle")
	}
}
