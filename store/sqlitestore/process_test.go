package sqlitestore_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// fileWithBusiness returns a file with all tables, and a store on it.
func fileWithBusiness(t *testing.T) (string, *sqlitestore.Store) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	db := openAt(t, path, sqlitestore.Config{})
	if _, err := db.DB().ExecContext(t.Context(), `CREATE TABLE business (note TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return path, db
}

// whole reports whether the transaction that wrote the event exists, and fails
// the test if only a part of it exists.
func whole(t *testing.T, db *sqlitestore.Store, id string) bool {
	t.Helper()
	parsed, err := waybill.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	event, err := db.Driver().Outbox.Committed(t.Context(), parsed)
	if err != nil {
		t.Fatal(err)
	}
	var row bool
	if err := db.DB().QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM business WHERE note = ?)`, id).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if event != row {
		t.Errorf("event %s: %v, its business row: %v", id, event, row)
	}
	return event
}

// TestProcessesMigrate migrates a new file from several processes, which also
// switch it to WAL at the same moment.
func TestProcessesMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	var children []*process
	for i := range 4 {
		children = append(children, start(t, path, "migrate", fmt.Sprint(i)))
	}
	applied := 0
	for _, p := range children {
		for _, line := range p.end(t) {
			var n int
			if _, err := fmt.Sscanf(line, "applied %d", &n); err != nil {
				t.Errorf("a child says %q", line)
			}
			applied += n
		}
	}
	db := openAt(t, path, sqlitestore.Config{})
	list, err := db.Migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if applied != len(list) {
		t.Errorf("%d migrations were applied, of %d", applied, len(list))
	}
}

// TestProcessesWrite writes from several processes, and from two handles in
// this process, at the same time: nothing is lost, and each writer's events are
// in order.
func TestProcessesWrite(t *testing.T) {
	path, db := fileWithBusiness(t)
	var children []*process
	for i := range 3 {
		children = append(children, start(t, path, "many", fmt.Sprintf("child-%d", i)))
	}
	var wg sync.WaitGroup
	for i, own := range []*sqlitestore.Store{db, openAt(t, path, sqlitestore.Config{})} {
		wg.Go(func() {
			c := &childProcess{name: fmt.Sprintf("handle-%d", i), db: own, box: newBox(t, own.Driver().Outbox)}
			if err := tasks["many"](t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, p := range children {
		p.end(t)
	}
	next := map[string]int{}
	for _, row := range fetch(t, db.Driver().Relay) {
		name := row.Event.AggregateID
		if got := string(row.Event.Payload); got != fmt.Sprint(next[name]) {
			t.Fatalf("%s: event %s, want %d", name, got, next[name])
		}
		next[name]++
	}
	if len(next) != 5 {
		t.Errorf("events of %d writers, want 5", len(next))
	}
	for name, n := range next {
		if n != 100 {
			t.Errorf("%s: %d events, want 100", name, n)
		}
	}
}

// TestKilledBeforeCommit kills a process that has written everything and not
// committed: nothing is left, and other processes continue.
func TestKilledBeforeCommit(t *testing.T) {
	path, db := fileWithBusiness(t)
	p := start(t, path, "before", "x")
	_, id := p.line(t)
	p.kill(t)
	if whole(t, db, id) {
		t.Error("an event of a process that never committed is there")
	}
	write(t, newBox(t, db.Driver().Outbox), placed("1"))
}

// TestKilledAfterCommit kills a process right after its commit: everything is
// there.
func TestKilledAfterCommit(t *testing.T) {
	path, db := fileWithBusiness(t)
	p := start(t, path, "after", "x")
	_, id := p.line(t)
	p.kill(t)
	if !whole(t, db, id) {
		t.Error("a committed event is gone")
	}
}

// TestKilledAnywhere kills a process in the middle of its work: every
// transaction exists as a whole or not at all, and every transaction that the
// process reported as committed exists.
func TestKilledAnywhere(t *testing.T) {
	path, db := fileWithBusiness(t)
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		p := start(t, path, "forever", "x")
		var reported []string
		for range 20 {
			_, id := p.line(t)
			reported = append(reported, id)
		}
		for _, line := range p.kill(t) {
			// The last line may be torn.
			if _, id, ok := strings.Cut(line, " "); ok && len(id) == len(reported[0]) {
				reported = append(reported, id)
			}
		}
		for _, id := range reported {
			if !whole(t, db, id) {
				t.Errorf("the committed event %s is gone", id)
			}
		}
	}
	var events, rows int
	if err := db.DB().QueryRowContext(t.Context(),
		`SELECT (SELECT count(*) FROM waybill_outbox), (SELECT count(*) FROM business)`).Scan(&events, &rows); err != nil {
		t.Fatal(err)
	}
	if events != 2*rows {
		t.Errorf("%d events and %d rows: half a transaction", events, rows)
	}
}

// TestFullDisk limits the disk space of a process: the result that the process
// got for each transaction is true.
func TestFullDisk(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "plan9" {
		t.Skip("files cannot be limited in size here")
	}
	path, db := fileWithBusiness(t)
	lines := start(t, path, "full", "x").end(t)
	count := map[string]int{}
	for _, line := range lines {
		word, id, _ := strings.Cut(line, " ")
		count[word]++
		switch there := whole(t, db, id); {
		case word == "committed" && !there:
			t.Errorf("%s: reported as committed", id)
		case word == "failed" && there:
			t.Errorf("%s: reported as failed", id)
		}
	}
	t.Logf("reported: %v", count)
	if count["committed"] == 0 || count["failed"]+count["uncertain"] == 0 {
		t.Errorf("the test shows nothing: %v", count)
	}
}
