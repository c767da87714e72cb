package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// The oldest events are purged first; the setting records the purged period,
// and never moves back.
func TestPurge(t *testing.T) { onBoth(t, testPurge) }

func testPurge(t *testing.T) {
	s, db := openStore(t, param("time_zone", "'+07:00'"))
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("a"), event("a"), event("a"), event("a"))
	rows := ready(t, s)
	settle(t, s, driver.Settlement{Leases: leases, Done: results(rows), History: true})
	exec(t, db, "UPDATE waybill_history SET done_at = UTC_TIMESTAMP(6) - INTERVAL 6 - number DAY")
	from := func() string {
		return ask[string](t, db, "SELECT COALESCE((SELECT value FROM waybill_setting WHERE name = 'history_from'), '')")
	}
	purge := func(age time.Duration, limit, want int) {
		t.Helper()
		if n, err := s.Driver().OutboxAdmin.Purge(t.Context(), store.Delivered, age, limit); err != nil || n != want {
			t.Errorf("Purge: %d, %v; want %d", n, err, want)
		}
	}
	purge(100*24*time.Hour, 10, 0)
	if from() != "" {
		t.Errorf("nothing was purged, and the history begins at %s", from())
	}
	age := 36 * time.Hour
	before := clock(t, s.Driver().Relay)
	purge(age, 2, 2)
	first := from()
	at, err := time.Parse(time.RFC3339, first)
	if cutoff := before.Add(-age); err != nil || at.Before(cutoff) || at.After(cutoff.Add(time.Minute)) {
		t.Errorf("the history begins at %s, want %v, rounded up", first, cutoff)
	}
	if n := ask[int](t, db, "SELECT MIN(number) FROM waybill_history"); n != 3 {
		t.Errorf("the oldest that is left is number %d", n)
	}
	// A shorter period: the setting does not move back.
	purge(60*time.Hour, 10, 1)
	if from() != first {
		t.Errorf("it went from %s to %s", first, from())
	}
	purge(0, 0, 0)
	purge(age, 10, 1)
	exec(t, db, "UPDATE waybill_setting SET value = 'never' WHERE name = 'history_from'")
	purge(0, 10, 1)
	if from() != "never" {
		t.Errorf("never has become %s", from())
	}
	for _, state := range []store.State{store.Ready, store.Delayed, 7} {
		if _, err := s.Driver().OutboxAdmin.Purge(t.Context(), state, 0, 1); err == nil {
			t.Errorf("Purge of %v", state)
		}
	}
	if _, err := s.Driver().OutboxAdmin.Purge(t.Context(), store.Dead, -1, 1); err == nil {
		t.Error("Purge with a negative age succeeded")
	}
}

func TestPurgeDead(t *testing.T) { onBoth(t, testPurgeDead) }

func testPurgeDead(t *testing.T) {
	s, db := openStore(t, nil)
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"), event("c"))
	rows := deadLetterAll(t, s, leases, true)
	exec(t, db, "UPDATE waybill_dead SET died_at = died_at - INTERVAL seq SECOND")
	if n, err := s.Driver().OutboxAdmin.Purge(t.Context(), store.Dead, time.Hour, 10); err != nil || n != 0 {
		t.Errorf("of the last hour: %d, %v", n, err)
	}
	if n, err := s.Driver().OutboxAdmin.Purge(t.Context(), store.Dead, 0, 2); err != nil || n != 2 {
		t.Errorf("two: %d, %v", n, err)
	}
	left, err := s.Driver().OutboxAdmin.List(t.Context(), store.Dead, store.Filter{}, 0, 10)
	// It died last.
	if err != nil || len(left) != 1 || left[0].ID != rows[0].ID {
		t.Errorf("left: %+v, %v", left, err)
	}
	if _, err := s.Driver().Outbox.Committed(t.Context(), rows[2].ID); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("Committed of a dead letter that was purged: %v, want uncertain", err)
	}
}

// Ready events are deleted if no relay runs, in parts, with their keys; a relay
// that joins in the meantime waits. Delayed events stay.
func TestPurgeWritten(t *testing.T) { onBoth(t, testPurgeWritten) }

func testPurgeWritten(t *testing.T) {
	s, db := openStore(t, nil)
	evs := make([]waybill.Event, 2500)
	for i := range evs {
		evs[i] = event(fmt.Sprint(i))
		if i%5 == 0 {
			evs[i].DedupKey = fmt.Sprint(i)
		}
		if i%10 == 0 {
			evs[i].Delay = time.Hour
		}
	}
	write(t, s, db, evs...)
	node, _ := own(t, s)
	if _, err := s.Driver().OutboxAdmin.PurgeWritten(t.Context(), 0, 10); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("with a relay: %v, want ErrRelayLive", err)
	}
	if _, err := s.Driver().OutboxAdmin.PurgeWritten(t.Context(), 0, 0); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("none at all, with a relay: %v, want ErrRelayLive", err)
	}
	if err := s.Driver().Relay.Leave(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		age         time.Duration
		limit, want int
	}{{time.Hour, 10, 0}, {0, 0, 0}, {0, 2200, 2200}, {0, 2200, 50}, {0, 2200, 0}} {
		_, err := s.Driver().Outbox.Committed(t.Context(), waybill.NewID())
		if n := keys(t, db); errors.Is(err, waybill.ErrUncertain) != (n < 500) {
			t.Errorf("with %d keys left: %v", n, err)
		}
		if n, err := s.Driver().OutboxAdmin.PurgeWritten(t.Context(), step.age, step.limit); err != nil || n != step.want {
			t.Errorf("%v, %d: %d, %v; want %d", step.age, step.limit, n, err, step.want)
		}
	}
	if n := counts(t, db); n["outbox"] != 0 || n["delayed"] != 250 || n["dedup"] != 250 {
		t.Errorf("after it: %v", n)
	}
}

// Tidy removes leftovers, more than one page of them, and nothing else. It does
// not wait for producers.
func TestTidy(t *testing.T) { onBoth(t, testTidy) }

func testTidy(t *testing.T) {
	s, db := openStore(t, impatient)
	write(t, s, db, keyed("a pending one"))
	exec(t, db, `INSERT INTO waybill_dedup (tenant_id, dedup_key, id)
SELECT IF(n % 2, '', 'tenant'), CONCAT('k', n), RANDOM_BYTES(16) FROM JSON_TABLE(CONCAT('[', REPEAT('0,', 2499), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)) AS t`)
	own(t, s)
	exec(t, db, "INSERT INTO waybill_node (id, relay, expires_at) VALUES (RANDOM_BYTES(16), 'x', UTC_TIMESTAMP(6) - INTERVAL 25 HOUR)")
	producer := begin(t, db, nil)
	exec(t, producer, "SELECT id FROM waybill_dedup WHERE tenant_id = '' AND dedup_key = 'k1' FOR UPDATE")
	if err := s.Driver().OutboxAdmin.Tidy(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	if n := keys(t, db); n != 2 {
		t.Errorf("%d keys are left, want the pending one and the locked one", n)
	}
	if err := producer.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := s.Driver().OutboxAdmin.Tidy(t.Context(), 0); err != nil || keys(t, db) != 1 {
		t.Errorf("%d keys are left, %v", keys(t, db), err)
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_node"); n != 1 {
		t.Errorf("%d nodes are left, want the live one", n)
	}
}

// lanesAre checks that every row is in its lane, and that the store, a new
// store and plain SQL agree.
func lanesAre(t *testing.T, s *mysqlstore.Store, want int) {
	t.Helper()
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead} {
		list, err := s.Driver().OutboxAdmin.List(t.Context(), state, store.Filter{}, 0, 1000)
		if err != nil || len(list) == 0 {
			t.Fatalf("%v: %v", state, err)
		}
		for _, r := range list {
			ev := r.Event
			if ev.Ordered() && r.Lane != driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, want) || r.Lane < 0 || r.Lane >= want {
				t.Errorf("%d lanes: %v: %q is in lane %d", want, state, ev.AggregateID, r.Lane)
			}
		}
	}
	st, err := s.Driver().OutboxAdmin.Stats(t.Context())
	if err != nil || len(st.Lanes) != want || len(st.Nodes) != 0 {
		t.Fatalf("%d lanes: %+v, %v", want, st.Membership, err)
	}
}

// All rows move, all epochs rise, and no epoch is ever reused, not even that of
// a lane that was removed and added again.
func TestSetLanes(t *testing.T) { onBoth(t, testSetLanes) }

func testSetLanes(t *testing.T) {
	db, _ := openDB(t, nil)
	s, err := mysqlstore.New(db, mysqlstore.Config{Lanes: 32})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	node, leases := own(t, s)
	many := func(n int, delay time.Duration) (evs []waybill.Event) {
		for i := range n {
			ev := event(fmt.Sprint(i))
			if i%4 == 0 {
				ev = event("")
			}
			ev.TenantID, ev.Delay = fmt.Sprint(i%3), delay
			evs = append(evs, ev)
		}
		return evs
	}
	write(t, s, db, many(40, 0)...)
	deadLetterAll(t, s, leases, true)
	write(t, s, db, many(40, time.Hour)...)
	write(t, s, db, many(40, 0)...)
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 8); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("with a relay: %v, want ErrRelayLive", err)
	}
	if err := s.Driver().Relay.Release(t.Context(), leases[:31], false); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "UPDATE waybill_lane SET epoch = 100 WHERE lane = 20")
	exec(t, db, "UPDATE waybill_node SET expires_at = UTC_TIMESTAMP(6)")
	lanesAre(t, s, 32)
	used := map[int]int64{20: 100}
	for _, n := range []int{8, 1, 32, 32, 1024, 7} {
		if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), n); err != nil {
			t.Fatalf("%d lanes: %v", n, err)
		}
		write(t, s, db, event("x"), event("y"), event(""))
		write(t, newStore(t, db), db, event("x"), event("y"), event(""))
		exec(t, db, "INSERT INTO waybill_outbox (type, aggregate_type, aggregate_id, tenant_id, payload) VALUES ('plain', 'thing', 'z', 't', ''), ('plain', 'thing', NULL, NULL, '')")
		lanesAre(t, s, n)
		st, err := s.Driver().OutboxAdmin.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range st.Lanes {
			if l.Epoch <= used[l.Lane] || !l.Owner.IsZero() {
				t.Errorf("%d lanes: %+v, and the epoch was %d before", n, l, used[l.Lane])
			}
			used[l.Lane] = l.Epoch
		}
	}
	if settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(ready(t, s)), History: true}); err != nil || len(settled.Held) != 0 {
		t.Errorf("the old owner settled %+v, %v", settled, err)
	}
	if _, err := s.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	now, err := s.Driver().Relay.Acquire(t.Context(), node, allLanes(), 3)
	if err != nil || len(now) != 7 || !now[0].Unclean || now[0].Window != 7 {
		t.Errorf("the new lanes: %+v, %v; want them unclean", now, err)
	}
}

func TestSetLanesRefuses(t *testing.T) { onBoth(t, testSetLanesRefuses) }

func testSetLanesRefuses(t *testing.T) {
	s, db := openStore(t, nil)
	for _, n := range []int{-1, 0, 1025} {
		if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), n); err == nil {
			t.Errorf("%d lanes are accepted", n)
		}
	}
	db.SetMaxIdleConns(1)
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	// The session's settings do not return to the pool.
	if n := ask[int](t, db, "SELECT @@autocommit"); n != 1 {
		t.Error("autocommit is off")
	}
	// A failure in the middle leaves the default unchanged.
	exec(t, db, "CREATE TRIGGER refused BEFORE UPDATE ON waybill_setting FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'")
	before := ask[string](t, db, "SELECT column_default FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'waybill_outbox' AND column_name = 'lane'")
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 9); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("SetLanes: %v, want the server's error", err)
	}
	after := ask[string](t, db, "SELECT column_default FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'waybill_outbox' AND column_name = 'lane'")
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_lane"); n != 5 || before != after || !strings.Contains(strings.ReplaceAll(after, "%", "MOD"), "MOD 5") {
		t.Errorf("%d lanes, and the default is %s", n, after)
	}
}

// SetLanes waits for the open transaction of a writer, and moves its events
// with the others.
func TestSetLanesWaitsForWriters(t *testing.T) { onBoth(t, testSetLanesWaitsForWriters) }

func testSetLanesWaitsForWriters(t *testing.T) {
	s, db := openStore(t, nil)
	tx := begin(t, db, nil)
	if _, err := s.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{event("a"), event("b"), event("c")}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := newStore(t, db).Driver().OutboxAdmin.SetLanes(short, 3); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("SetLanes under a writer: %v, want it to wait", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Driver().OutboxAdmin.SetLanes(t.Context(), 3) }()
	await(t, "SetLanes waits", func() bool {
		return ask[int](t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'LOCK TABLES%'") > 0
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, row := range ready(t, s) {
		if row.Lane != driver.LaneOf("", "thing", row.Event.AggregateID, 3) {
			t.Errorf("%q is in lane %d", row.Event.AggregateID, row.Lane)
		}
	}
}
