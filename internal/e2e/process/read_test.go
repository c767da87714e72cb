//go:build linux || darwin

package process_test

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// TestLateBesideAHold: a transaction gets its seq early and commits late, when
// reading is far past it. Its event is delivered, also while an event is held,
// so that the lane is never so quiet that it is read from its beginning.
//
// SQLite cannot show it: it has one writer at a time.
func TestLateBesideAHold(t *testing.T) {
	late(t, spec{}, longOpen, "/0", func(b *env) {
		b.await("the late one is delivered", func() bool { return b.count(journal.OK, "A", "/0") == 1 })
	})
}

// longOpen is longer than a relay lets a transaction hold its reads back.
const longOpen = 3 * time.Second

// late lets a transaction commit an event long after later events were read and
// delivered, while another event is held.
func late(t *testing.T, s spec, open time.Duration, name string, then func(b *env)) {
	for database, place := range map[string]func(*testing.T) place{"postgres": postgresPlace, "mariadb": mariadbPlace, "mysql": mysqlPlace} {
		t.Run(database, func(t *testing.T) {
			at := place(t)
			at.Lanes = 1
			b := newEnv(t, at)
			s := s
			s.Name, s.Backoff, s.Script = "A", time.Hour, map[string]act{"held/0": {Error: "no"}}
			b.start(s)
			b.add("held/0")
			b.await("held/0 is deferred", func() bool { return b.find("held/0").State == store.Delayed })
			b.add("held/1")
			evs := b.events(name)
			placed, commit, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				if err := b.late(t.Context(), func() { close(placed); <-commit }, evs...); err != nil {
					t.Error(err)
				}
			}()
			<-placed
			b.add("other/0")
			b.await("what came later has been delivered for so long", func() bool {
				records := b.journal()
				last := records[len(records)-1]
				return last.Name() == "other/0" && last.What == journal.OK && time.Since(last.At) > open
			})
			close(commit)
			<-done
			then(b)
		})
	}
}

// TestBehindALateCommit: an event that was written after a late commit, to the
// same aggregate, waits for the events of that commit, although reading is far
// past them and no sweep occurs.
func TestBehindALateCommit(t *testing.T) {
	for name, open := range map[string]time.Duration{"soon": 50 * time.Millisecond, "long after": longOpen} {
		t.Run(name, func(t *testing.T) {
			late(t, spec{Sweep: time.Minute}, open, "x/0", func(b *env) {
				b.add("x/1")
				b.await("the next one is delivered", func() bool { return b.count(journal.OK, "A", "x/1") == 1 })
				b.wantOrder()
			})
		})
	}
}

// TestClockSetBack: the order of an aggregate is that of its seqs in the
// outbox, regardless of clocks: a clock that was set back between two
// transactions makes the second one look older.
func TestClockSetBack(t *testing.T) {
	back := map[string]string{
		"postgres": `UPDATE {outbox} SET created_at = created_at - seq * interval '1 minute'`,
		"mariadb":  `UPDATE {outbox} SET created_at = created_at - INTERVAL seq MINUTE`,
		"mysql":    `UPDATE {outbox} SET created_at = created_at - INTERVAL seq MINUTE`,
		"sqlite":   `UPDATE {outbox} SET created_at = created_at - seq * 60000000`,
	}
	everywhere(t, func(b *env) {
		names := series("x", 20)
		for _, name := range names {
			b.add(name)
		}
		if _, err := b.place.handle(b.T).ExecContext(b.Context(), b.place.fill(back[b.place.Database])); err != nil {
			b.Fatal(err)
		}
		b.start(spec{Name: "A"})
		b.awaitEmpty()
		b.wantOK(1, names...)
		b.wantOrder()
	})
}
