package sqlitestore_test

import (
	"context"
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// child is the environment variable that turns the test binary into a program
// under test; see child_test.go.
const child = "WAYBILL_SQLITE_CHILD"

func TestMain(m *testing.M) {
	if task := os.Getenv(child); task != "" {
		os.Exit(runChild(task))
	}
	goleak.VerifyTestMain(m)
}

// open returns a store over a new file with the tables, and closes it at the
// end of the test.
func open(t testing.TB, cfg sqlitestore.Config) *sqlitestore.Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "test.db"), cfg)
}

func openAt(t testing.TB, path string, cfg sqlitestore.Config) *sqlitestore.Store {
	t.Helper()
	db, err := sqlitestore.Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, db) })
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// over returns a store of New over a handle that was opened with the given
// settings.
func over(t testing.TB, path, settings string, cfg sqlitestore.Config) *sqlitestore.Store {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?"+settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, db) })
	s, err := sqlitestore.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, s) })
	return s
}

func newBox(t testing.TB, db driver.Outbox[*sql.Tx]) *outbox.Outbox[*sql.Tx] {
	t.Helper()
	box, err := outbox.New(testroles.Of[*sql.Tx](db), outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// write commits one event.
func write(t testing.TB, box *outbox.Outbox[*sql.Tx], ev waybill.Event) waybill.ID {
	t.Helper()
	ev.ID = waybill.NewID()
	err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, ev) })
	if err != nil {
		t.Fatal(err)
	}
	return ev.ID
}

// fetch returns all ready rows.
func fetch(t testing.TB, db driver.Reader) []store.Row {
	t.Helper()
	page, err := db.Fetch(t.Context(), []driver.Cursor{{}}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

func placed(payload string) waybill.Event {
	return waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "o-1", Payload: []byte(payload)}
}

// shut closes what a test has opened.
func shut(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
