package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/store/mysqlstore"
)

// TestParseStatus reads statuses. idle.txt and mariadb.txt were printed by
// MariaDB 10.11 and are shortened; the others, including mysql.txt, are written
// by hand in that form.
func TestParseStatus(t *testing.T) {
	for _, c := range []struct {
		file   string
		open   []string
		answer string
	}{
		{file: "idle.txt", answer: "known"},
		// 24 has inserted, 25 has locked a row, 26 is prepared, 27 waits for
		// 25; one only reads.
		{file: "mariadb.txt", open: []string{"27", "26", "25", "24"}, answer: "known"},
		{file: "mysql.txt", open: []string{"1811", "1810"}, answer: "known"},
		// The statements look like the ends of lists and of transactions.
		{file: "statements.txt", open: []string{"31", "30"}, answer: "known"},
		{file: "nameless.txt", open: []string{"0"}, answer: "known"},
		{file: "committing.txt", open: []string{"27"}, answer: "committing"},
		{file: "truncated.txt", answer: "unknown"},
		{file: "nolist.txt", answer: "unknown"},
		{file: "noend.txt", answer: "unknown"},
	} {
		t.Run(strings.TrimSuffix(c.file, ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "status", c.file))
			if err != nil {
				t.Fatal(err)
			}
			open, answer := mysqlstore.ParseStatus(string(text))
			if answer != c.answer || !slices.Equal(open, c.open) {
				t.Errorf("parseStatus returned %q, %s; want %q, %s", open, answer, c.open, c.answer)
			}
		})
	}
}

// TestWritersWhilePolled: a session that keeps reading innodb_trx, and so keeps
// the copy old, hides no writing transaction.
func TestWritersWhilePolled(t *testing.T) { onBoth(t, testWritersWhilePolled) }

func testWritersWhilePolled(t *testing.T) {
	s, db := openStore(t, nil)
	before := begin(t, db, nil)
	exec(t, before, "INSERT INTO business (note) VALUES ('before')")
	keepOld(t, db)
	since := begin(t, db, nil)
	exec(t, since, "INSERT INTO business (note) VALUES ('since')")
	names := []string{nameOf(t, db, before), nameOf(t, db, since)}
	for range 20 {
		if w := known(t, s); !slices.Contains(w, names[0]) || !slices.Contains(w, names[1]) {
			t.Fatalf("%q write, and OpenWriters returned %q", names, w)
		}
	}
	if err := before.Commit(); err != nil {
		t.Fatal(err)
	}
	if w := known(t, s); slices.Contains(w, names[0]) || !slices.Contains(w, names[1]) {
		t.Errorf("of %q the first has committed, and OpenWriters returned %q", names, w)
	}
	if err := since.Rollback(); err != nil {
		t.Fatal(err)
	}
	if w := known(t, s); slices.Contains(w, names[1]) {
		t.Errorf("%q has rolled back, and OpenWriters returned %q", names[1], w)
	}
}

func known(t *testing.T, s *mysqlstore.Store) []string {
	t.Helper()
	w, err := s.Driver().Relay.OpenWriters(t.Context())
	if err != nil || w.Unknown {
		t.Fatalf("OpenWriters returned %+v, %v; want known writers", w, err)
	}
	return w.Open
}

// keepOld reads innodb_trx repeatedly until the test ends. It returns after the
// first read.
func keepOld(t *testing.T, db *sql.DB) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var failed error
	old, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for n := 0; failed == nil && ctx.Err() == nil; n++ {
			var shown int
			err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.innodb_trx").Scan(&shown)
			if err != nil && ctx.Err() == nil {
				failed = err
			}
			if n == 10 {
				close(old)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		if failed != nil {
			t.Error(failed)
		}
	})
	select {
	case <-old:
	case <-over:
		t.Fatal(failed)
	}
}

// nameOf returns the server's name of a transaction.
func nameOf(t *testing.T, db *sql.DB, tx *sql.Tx) string {
	t.Helper()
	var thread int
	if err := tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&thread); err != nil {
		t.Fatal(err)
	}
	var kind, name, text string
	if err := db.QueryRowContext(t.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &text); err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(text, "\n---TRANSACTION ") {
		if regexp.MustCompile(fmt.Sprintf(`(?m)^\w+ thread id %d,`, thread)).MatchString(part) {
			name, _, _ := strings.Cut(part, ",")
			return name
		}
	}
	t.Fatalf("no transaction of thread %d in:\n%s", thread, text)
	return ""
}

// A statement of another session with bytes that are not text does not keep
// OpenWriters from listing the writers.
func TestWritersBesideBytes(t *testing.T) { onBoth(t, testWritersBesideBytes) }

func testWritersBesideBytes(t *testing.T) {
	s, db := openStore(t, nil)
	exec(t, db, "CREATE TABLE raw_bytes (id INT PRIMARY KEY, b VARBINARY(99)) ENGINE=InnoDB")
	holder := begin(t, db, nil)
	exec(t, holder, "INSERT INTO raw_bytes VALUES (1, '')")
	waits := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), "INSERT INTO raw_bytes VALUES (1, _binary'\xa1\xea\xcb')")
		waits <- err
	}()
	await(t, "the statement waits", func() bool { return lockWaits(t, db) > 0 })
	w, err := s.Driver().Relay.OpenWriters(t.Context())
	if err != nil || !w.Unknown && len(w.Open) < 2 {
		t.Errorf("OpenWriters: %+v, %v; want both, or Unknown", w, err)
	}
	if err := holder.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err == nil {
		t.Error("the same key was inserted twice")
	}
}
