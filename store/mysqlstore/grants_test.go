package mysqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// accounts are those of docs/operating.md, in a database of the test's own.
type accounts struct {
	t          *testing.T
	root       *sql.DB
	name, mark string
}

// grant runs the statements of a block.
func (a *accounts) grant(info string) {
	a.t.Helper()
	for _, block := range docblock.Blocks(a.t, "docs/operating.md", info) {
		block = strings.NewReplacer("shop.waybill_", a.name+".waybill_", "shop.*", a.name+".*", "'shop_", "'"+a.mark).Replace(block)
		for statement := range strings.SplitSeq(block, ";\n") {
			if strings.TrimSpace(statement) != "" {
				exec(a.t, a.root, statement)
			}
		}
	}
}

// as returns a store of one of the accounts, and its pool.
func (a *accounts) as(role, password string) (*mysqlstore.Store, *sql.DB) {
	a.t.Helper()
	a.t.Cleanup(func() { exec(a.t, a.root, "DROP USER IF EXISTS '"+a.mark+role+"'@'%'") })
	cfg := configOf(a.t, a.name)
	cfg.User, cfg.Passwd = a.mark+role, password
	db := pool(a.t, cfg)
	return newStore(a.t, db), db
}

// The grants of docs/operating.md are enough for what each account is for, and not for the next
// one's work.
func TestDocumentedGrants(t *testing.T) { onBoth(t, testDocumentedGrants) }

func testDocumentedGrants(t *testing.T) {
	root, name := openDB(t, nil)
	a := &accounts{t, root, name, "g" + name[len(name)-8:] + "_"}
	migrator, _ := a.as("migrator", "a-long-password-1")
	a.grant("sql mysql-migrator")
	if _, err := migrator.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrator.SetLanes(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	writer, writerDB := a.as("writer", "a-long-password-2")
	node, relayDB := a.as("relay", "a-long-password-3")
	reader, readerDB := a.as("reader", "a-long-password-4")
	a.grant("sql mysql-grants")

	evs := grantedWriter(t, writer)
	denied(t, writerDB, "UPDATE waybill_lane SET epoch = epoch + 1", "DELETE FROM waybill_history", "DROP TABLE waybill_outbox")
	grantedRelay(t, node, len(evs))
	denied(t, relayDB, "DROP TABLE waybill_outbox", "ALTER TABLE waybill_outbox COMMENT = ''")
	grantedReader(t, reader)
	denied(t, readerDB, "DELETE FROM waybill_outbox", "INSERT INTO waybill_setting (name, value) VALUES ('x', 'y')")
}

func denied(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v, want that it is denied", statement, err)
		}
	}
}

// grantedWriter writes in all ways, and returns what is pending.
func grantedWriter(t *testing.T, s *mysqlstore.Store) []waybill.Event {
	t.Helper()
	box := newBox(t, s, outbox.Hook{AfterCommit: func(context.Context, []waybill.Event) {}}) // which has it look for its rows
	late := event("late")
	late.Delay = time.Hour
	evs := []waybill.Event{event("a"), event(""), keyed("k"), late, event("b")}
	for _, batch := range [][]waybill.Event{evs[:1], evs[1:4], {keyed("k")}, evs[4:]} { // a key that is taken, too
		err := box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, batch...) })
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ev := range evs {
		if there, err := box.Committed(t.Context(), ev.ID); err != nil || !there {
			t.Errorf("Committed: %t, %v", there, err)
		}
	}
	if _, err := s.Migrations(t.Context()); err != nil {
		t.Errorf("Migrations: %v", err)
	}
	return evs
}

// grantedRelay does what a relay and an operator do.
func grantedRelay(t *testing.T, s *mysqlstore.Store, pending int) {
	t.Helper()
	me, leases := own(t, s)
	if w, err := s.Writers(t.Context()); err != nil || w.Unknown {
		t.Errorf("Writers: %+v, %v; want that it is known who writes", w, err)
	}
	rows := ready(t, s)
	if len(rows) != pending-1 {
		t.Fatalf("%d events are ready, want %d", len(rows), pending-1)
	}
	all := results(rows)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := s.Settle(t.Context(), store.Settlement{Leases: leases, Done: all[:1], Retry: all[1:2], Dead: all[2:3], History: true})
	must("Settle", err)
	_, err = s.Settle(t.Context(), store.Settlement{Leases: leases, Done: all[3:]})
	must("Settle without a history", err)
	_, err = s.Due(t.Context(), allLanes(), 10)
	must("Due", err)
	_, err = s.Holds(t.Context(), allLanes())
	must("Holds", err)
	_, err = s.Replay(t.Context(), []waybill.ID{all[2].ID})
	must("Replay", err)
	_, err = s.Unblock(t.Context(), []waybill.ID{all[2].ID})
	must("Unblock", err)
	_, err = s.Discard(t.Context(), []waybill.ID{all[2].ID})
	must("Discard", err)
	_, err = s.Purge(t.Context(), store.Delivered, 0, 10)
	must("Purge", err)
	must("Tidy", s.Tidy(t.Context(), time.Hour))
	must("Release", s.Release(t.Context(), leases, false))
	must("Leave", s.Leave(t.Context(), me))
	_, err = s.PurgeWritten(t.Context(), 0, 10)
	must("PurgeWritten", err)
	if _, took, err := s.ClaimEvent(t.Context(), intakes("g", 1)[0], waybill.NewID(), time.Minute, 3, nil); err != nil || !took {
		t.Errorf("ClaimEvent: %t, %v", took, err)
	}
	_, _, err = s.ClaimKey(t.Context(), store.KeyClaim{KeyID: store.KeyID{Operation: "o", Key: "k"}, Owner: waybill.NewID(), Hash: "h", Lease: time.Minute})
	must("ClaimKey", err)
	_, err = s.PurgeKeys(t.Context(), 10)
	must("PurgeKeys", err)
}

// grantedReader looks at everything.
func grantedReader(t *testing.T, s *mysqlstore.Store) {
	t.Helper()
	if _, err := s.Stats(t.Context()); err != nil {
		t.Errorf("Stats: %v", err)
	}
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		if _, err := s.List(t.Context(), state, store.Filter{}, 0, 10); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	if _, err := s.GroupStats(t.Context(), true); err != nil {
		t.Errorf("GroupStats: %v", err)
	}
	if _, err := s.KeyStats(t.Context()); err != nil {
		t.Errorf("KeyStats: %v", err)
	}
	if _, err := s.ListJobs(t.Context()); err != nil {
		t.Errorf("ListJobs: %v", err)
	}
	if _, err := s.Migrations(t.Context()); err != nil {
		t.Errorf("Migrations: %v", err)
	}
}
