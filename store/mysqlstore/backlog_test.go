package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// destinations registers destinations, which get the numbers from 1 on.
func destinations(t testing.TB, s *mysqlstore.Store, names ...string) {
	t.Helper()
	all, err := s.Driver().Backlogs.AddDestinations(t.Context(), names...)
	if err != nil || len(all) != len(names) || all[len(all)-1].Number != len(names) {
		t.Fatalf("AddDestinations: %+v, %v", all, err)
	}
}

// diversions returns a diversion of each row to each destination.
func diversions(rows []store.Row, numbers ...int) []driver.Diversion {
	var all []driver.Diversion
	for _, row := range rows {
		for _, number := range numbers {
			all = append(all, driver.Diversion{Destination: number, ID: row.ID, Attempts: 1, Error: "x"})
		}
	}
	return all
}

// behindIn returns the ready rows of a backlog.
func behindIn(t testing.TB, s *mysqlstore.Store, number int) []store.Row {
	t.Helper()
	page, err := s.Driver().Backlogs.Backlog(number).Fetch(t.Context(), cursors(32), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

// settleIn records results in a backlog.
func settleIn(t testing.TB, s *mysqlstore.Store, number int, set driver.Settlement) {
	t.Helper()
	settled, err := s.Driver().Backlogs.Backlog(number).Settle(t.Context(), set)
	if want := len(set.Done) + len(set.Retry) + len(set.Dead); err != nil || len(settled.Moved) != want {
		t.Fatalf("Settle in backlog %d: %d moved, want %d; %v", number, len(settled.Moved), want, err)
	}
}

// Without destinations, an outbox uses none of their tables and procedures: a
// program with backlogs works on tables that have none.
func TestNoDestinationNoBacklog(t *testing.T) { onBoth(t, testNoDestinationNoBacklog) }

func testNoDestinationNoBacklog(t *testing.T) {
	s, db := openStore(t, nil)
	for _, statement := range []string{
		"DROP PROCEDURE waybill_settle_divert", "DROP PROCEDURE waybill_settle_backlog",
		"DROP TABLE waybill_backlog, waybill_backlog_delayed, waybill_backlog_dead, waybill_destination",
	} {
		exec(t, db, statement)
	}
	pending := len(grantedWriter(t, s))
	grantedConsumer(t, s)
	grantedRelay(t, s, pending+2)
	grantedReader(t, s)
}

// Few rows are delivered, deferred, dead or ready in one backlog, and many in
// another and in the history. Whatever is done with the few, the server reads
// few rows.
func TestBacklogReadsItsOwnRows(t *testing.T) { onBoth(t, testBacklogReadsItsOwnRows) }

func testBacklogReadsItsOwnRows(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "many", "few")
	_, leases := own(t, s)
	fillBacklog(t, s, db, leases, 1, 3000)
	rows := fillBacklog(t, s, db, leases, 2, 8)
	exec(t, db, "ANALYZE TABLE waybill_backlog, waybill_backlog_delayed, waybill_backlog_dead, waybill_history, waybill_lane")

	db.SetMaxOpenConns(1)
	few := s.Driver().Backlogs.Backlog(2)
	reads := func(what string, limit int, do func() error) {
		t.Helper()
		exec(t, db, "FLUSH STATUS")
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := handlerReads(t, db); n > limit {
			t.Errorf("%s: the server read %d rows or entries of indexes, want at most %d", what, n, limit)
		}
	}
	page := func(_ driver.Page, err error) error { return err }
	ctx := t.Context()
	reads("Fetch", 200, func() error { return page(few.Fetch(ctx, cursors(32), 100)) })
	reads("Sweep", 200, func() error { _, err := few.Sweep(ctx, cursors(32), 100); return err })
	reads("Load", 200, func() error { return page(few.Load(ctx, []store.Key{rows[0].Key, rows[1].Key})) })
	reads("Due", 300, func() error { return page(few.Due(ctx, allLanes(), 100)) })
	reads("Holds", 300, func() error { _, err := few.Holds(ctx, allLanes()); return err })
	reads("FetchAggregate", 200, func() error {
		return page(few.FetchAggregate(ctx, driver.AggregateOf(&rows[0].Event), driver.Cursor{Lane: rows[0].Lane}, 10))
	})
	reads("FetchPriority", 300, func() error {
		p, err := few.FetchPriority(ctx, cursors(32), 10)
		if p.RowsScanned > 10 || !slices.Equal(p.Plain, allLanes()) {
			t.Errorf("FetchPriority says that it scanned %d rows, and that the lanes %v have none with a priority", p.RowsScanned, p.Plain)
		}
		return err
	})
	reads("Occupied", 300, func() error { _, err := few.Occupied(ctx); return err })
	reads("Stats", 400, func() error { _, err := few.Stats(ctx); return err })
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead} {
		reads("List", 100, func() error { _, err := few.List(ctx, state, store.Filter{}, 0, 100); return err })
		reads("Count", 100, func() error { _, err := few.Count(ctx, state, store.Filter{}); return err })
	}
	reads("Find", 50, func() error { _, err := few.Find(ctx, rows[0].ID); return err })
	reads("PurgeDead", 50, func() error { _, err := few.PurgeDead(ctx, 0, 1); return err })
	some := results(rows)
	reads("Settle", 400, func() error {
		set := driver.Settlement{Leases: leases[:8], Done: some[:1], Retry: some[1:2], Dead: some[2:3], History: true}
		for i := range set.Leases {
			set.Leases[i] = leases[rows[i%3].Lane]
		}
		settled, err := few.Settle(ctx, set)
		if len(settled.Moved) != 3 {
			t.Errorf("Settle: %+v", settled)
		}
		return err
	})
	reads("Replay", 100, func() error { _, err := few.Replay(ctx, []waybill.ID{rows[2].ID}); return err })
	reads("Unblock", 100, func() error { _, err := few.Unblock(ctx, []waybill.ID{rows[2].ID}); return err })
	reads("Discard", 100, func() error { _, err := few.Discard(ctx, []waybill.ID{rows[2].ID}); return err })
	reads("Refill", 400, func() error {
		since := time.Date(2030, 1, 1, 0, 0, 1, 500_000_000, time.UTC) // half of the events
		refilled, err := few.Refill(ctx, driver.HistoryQuery{Since: since}, driver.HistoryCursor{}, 20)
		if refilled.Copied != 20 {
			t.Errorf("Refill: %+v", refilled)
		}
		return err
	})
}

// handlerReads returns the number of rows and entries of indexes that the
// session has read since FLUSH STATUS.
func handlerReads(t *testing.T, db *sql.DB) (reads int) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		reads += n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return reads
}

// fillBacklog writes events, delivered one millisecond after the other, and
// diverts them; a quarter of them is then deferred, and a quarter dead. It
// returns the rows that are still ready.
func fillBacklog(t *testing.T, s *mysqlstore.Store, db *sql.DB, leases []driver.Lease, number, n int) []store.Row {
	t.Helper()
	var evs []waybill.Event
	for i := range n {
		evs = append(evs, event(fmt.Sprint(i%100)))
	}
	write(t, s, db, evs...)
	rows := ready(t, s)
	settle(t, s, driver.Settlement{Leases: leases, Done: results(rows), History: true, Divert: diversions(rows, number)})
	exec(t, db, "UPDATE waybill_history SET done_at = TIMESTAMP'2030-01-01 00:00:00' + INTERVAL number * 1000 MICROSECOND")
	slices.SortFunc(rows, func(a, b store.Row) int { return int(a.Seq - b.Seq) })
	rest := results(rows[:n/2])
	for i := range rest {
		rest[i].Delay, rest[i].Holds = time.Hour, true
	}
	settleIn(t, s, number, driver.Settlement{Leases: leases, Retry: rest[:n/4], Dead: rest[n/4:]})
	return rows[n/2:]
}

// Events that are found by key are diverted like others, with any hint.
func TestDivertWithHints(t *testing.T) { onBoth(t, testDivertWithHints) }

func testDivertWithHints(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a", "b")
	_, leases := own(t, s)
	for name, spoil := range map[string]func(done []driver.Result){
		"right":             func([]driver.Result) {},
		"of another event":  func(done []driver.Result) { done[0].Seq = done[1].Seq },
		"an event is gone":  func(done []driver.Result) { exec(t, db, "DELETE FROM waybill_outbox WHERE id = ?", done[0].ID[:]) },
		"an event is late":  func(done []driver.Result) { defers(t, s, leases, &done[0], 0) },
		"late, and no hint": func(done []driver.Result) { defers(t, s, leases, &done[0], done[0].Seq); done[0].Seq = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			write(t, s, db, some()...)
			rows := ready(t, s)
			done := results(rows)
			spoil(done)
			settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{
				Leases: leases, Done: done, History: true, Divert: append(diversions(rows[:2], 2), diversions(rows[:1], 1)...),
			})
			gone := 0
			if name == "an event is gone" {
				gone = 1
			}
			if err != nil || len(settled.Moved) != len(done)-gone || len(ready(t, s)) != 0 {
				t.Errorf("Settle: %d moved, %v", len(settled.Moved), err)
			}
			a, b := behindIn(t, s, 1), behindIn(t, s, 2)
			if !slices.Equal(idsOf(a), idsOf(rows[gone:1])) || !slices.Equal(idsOf(b), idsOf(rows[gone:2])) {
				t.Errorf("the backlogs have %d and %d rows", len(a), len(b))
			}
			settleIn(t, s, 1, driver.Settlement{Leases: leases, Done: results(a)})
			settleIn(t, s, 2, driver.Settlement{Leases: leases, Done: results(b)})
		})
	}
}

// defers makes an event late.
func defers(t *testing.T, s *mysqlstore.Store, leases []driver.Lease, r *driver.Result, seq int64) {
	t.Helper()
	settle(t, s, driver.Settlement{Leases: leases, Retry: []driver.Result{*r}})
	r.Late, r.Seq = true, seq
}

// An id that is written again while its first event is in a backlog, in any
// state, does not stop the settlement: the backlog keeps what it has.
func TestDivertOfAnIDWrittenTwice(t *testing.T) { onBoth(t, testDivertOfAnIDWrittenTwice) }

func testDivertOfAnIDWrittenTwice(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a", "b")
	_, leases := own(t, s)
	evs := []waybill.Event{event("ready"), event("delayed"), event("dead")}
	divert := func() []store.Row {
		t.Helper()
		write(t, s, db, evs...)
		rows := ready(t, s)
		settle(t, s, driver.Settlement{Leases: leases, Done: results(rows), Divert: diversions(rows, 1)})
		return rows
	}
	first := divert()
	for _, row := range first {
		switch r := results([]store.Row{row}); row.ID {
		case evs[1].ID:
			settleIn(t, s, 1, driver.Settlement{Leases: leases, Retry: r})
		case evs[2].ID:
			settleIn(t, s, 1, driver.Settlement{Leases: leases, Dead: r})
		}
	}
	divert()
	for i, want := range []store.State{store.Ready, store.Delayed, store.Dead} {
		found, err := s.Driver().Backlogs.Backlog(1).Find(t.Context(), evs[i].ID)
		at := slices.IndexFunc(first, func(r store.Row) bool { return r.ID == evs[i].ID })
		if err != nil || len(found) != 1 || found[0].State != want || found[0].Seq != first[at].Seq {
			t.Errorf("%v: %+v, %v", want, found, err)
		}
	}
}

// The history has the lanes of the time of the delivery. A refill puts every
// event into a lane that exists, and an ordered one into that of its aggregate.
func TestRefillAfterSetLanes(t *testing.T) { onBoth(t, testRefillAfterSetLanes) }

func testRefillAfterSetLanes(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a", "b")
	node, leases := own(t, s)
	var evs []waybill.Event
	for i := range 40 {
		evs = append(evs, event(fmt.Sprint(i)), event(""))
	}
	write(t, s, db, evs...)
	rows := ready(t, s)
	settle(t, s, driver.Settlement{Leases: leases, Done: results(rows), History: true, Divert: diversions(rows, 2)})
	if err := s.Driver().Relay.Leave(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Driver().Backlogs.Backlog(1).Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 100); err != nil || got.Copied != 80 {
		t.Fatalf("Refill: %+v, %v", got, err)
	}
	for number := 1; number <= 2; number++ {
		got := behindIn(t, s, number)
		if len(got) != 80 {
			t.Errorf("backlog %d has %d rows", number, len(got))
		}
		for _, row := range got {
			ev := row.Event
			if row.Lane < 0 || row.Lane > 4 || ev.Ordered() && row.Lane != driver.LaneOf("", "thing", ev.AggregateID, 5) {
				t.Errorf("backlog %d: %q is in lane %d", number, ev.AggregateID, row.Lane)
			}
		}
	}
}

// A relay that stopped for longer than its lease wakes up after its destination
// was removed and another one got the number: it settles nothing.
func TestRemovedDestinationEndsLeases(t *testing.T) { onBoth(t, testRemovedDestinationEndsLeases) }

func testRemovedDestinationEndsLeases(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a")
	node, leases := own(t, s)
	write(t, s, db, event("x"))
	rows := ready(t, s)
	exec(t, db, "UPDATE waybill_node SET expires_at = UTC_TIMESTAMP(6) WHERE id = ?", node.ID[:])
	if _, err := s.Driver().Backlogs.RemoveDestination(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	destinations(t, s, "b")
	settled, err := s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(rows), Divert: diversions(rows, 1)})
	if err != nil || len(settled.Held) != 0 || len(behindIn(t, s, 1)) != 0 {
		t.Errorf("Settle: %+v, %v; the backlog of the new destination has %d rows", settled, err, len(behindIn(t, s, 1)))
	}
	again := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := s.Driver().Relay.Heartbeat(t.Context(), again, time.Hour); err != nil {
		t.Fatal(err)
	}
	taken, err := s.Driver().Relay.Acquire(t.Context(), again, allLanes(), 1)
	if err != nil || len(taken) != 32 || !taken[0].Unclean || taken[0].Window != 7 {
		t.Errorf("Acquire: %d leases, %v; want them unclean", len(taken), err)
	}
}

// Epochs are higher than any that was issued since the backup, also those of
// lanes that the backup does not have. The sequence keeps its place without a
// row, and nothing is left of the row that moved it.
func TestRestored(t *testing.T) { onBoth(t, testRestored) }

func testRestored(t *testing.T) {
	s, db := openStore(t, nil)
	if err := s.Driver().OutboxAdmin.SetLanes(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "UPDATE waybill_lane SET epoch = 77 WHERE lane = 2")
	for round := int64(1); round <= 2; round++ {
		if err := s.Driver().Restorer.Restored(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w, err := s.Driver().Relay.OpenWriters(t.Context())
		if want := round * driver.RestoreSeqs; err != nil || w.Issued < want || w.Issued > want+10 || len(ready(t, s)) != 0 {
			t.Errorf("round %d: the highest seq is %d, %v", round, w.Issued, err)
		}
		if n := ask[int64](t, db, "SELECT epoch FROM waybill_lane WHERE lane = 2"); n != 77+round*driver.RestoreEpochs {
			t.Errorf("round %d: the epoch is %d", round, n)
		}
		if n := ask[int64](t, db, "SELECT value FROM waybill_setting WHERE name = 'highest_epoch'"); n < 77+round*driver.RestoreEpochs {
			t.Errorf("round %d: lanes continue from epoch %d", round, n)
		}
	}
	write(t, s, db, event("a"))
	if rows := ready(t, s); len(rows) != 1 || rows[0].Seq <= 2*driver.RestoreSeqs {
		t.Errorf("written afterwards: %+v", rows)
	}
}

// Relays settle, divert and retry, while operators replay, discard, refill and
// pause. No call fails, and every event is in each place where it must be.
func TestBacklogsUnderContention(t *testing.T) { onBoth(t, testBacklogsUnderContention) }

func testBacklogsUnderContention(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a", "b")
	_, leases := own(t, s)
	const rounds, size = 30, 40
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	check := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			t.Errorf("%s: %v", what, err)
			cancel()
		}
	}
	produced := make(chan struct{})
	work := []func(){
		func() { // the outbox: everything is diverted to both destinations
			defer close(produced)
			for range rounds {
				var evs []waybill.Event
				for i := range size {
					evs = append(evs, event(fmt.Sprint(i%7)))
				}
				tx := begin(t, db, nil)
				_, err := s.Driver().Outbox.Append(ctx, tx, evs)
				check("Append", err)
				check("Commit", tx.Commit())
				p, err := s.Driver().Relay.Fetch(ctx, cursors(32), 1000)
				check("Fetch", err)
				settled, err := s.Driver().Relay.Settle(ctx, driver.Settlement{Leases: leases, Done: results(p.Rows), History: true, Divert: diversions(p.Rows, 1, 2)})
				check("Settle", err)
				if len(settled.Moved) != len(p.Rows) {
					t.Errorf("%d of %d events were moved", len(settled.Moved), len(p.Rows))
				}
			}
		},
	}
	for number := 1; number <= 2; number++ {
		work = append(work, func() { drain(ctx, check, s, leases, number, produced) })
		for range 2 { // at the same time
			work = append(work, func() { operate(ctx, check, s, number, produced) })
		}
	}
	done := make(chan struct{})
	for _, fn := range work {
		go func() { fn(); done <- struct{}{} }()
	}
	for range work {
		<-done
	}
	if n := ask[int](t, db, "SELECT COUNT(*) FROM waybill_history"); n != rounds*size || len(ready(t, s)) != 0 {
		t.Errorf("%d events are in the history, and %d are ready", n, len(ready(t, s)))
	}
	for number := 1; number <= 2; number++ {
		if st, err := s.Driver().Backlogs.Backlog(number).Stats(t.Context()); err != nil || st.Ready+st.Scheduled+st.Failed+st.Dead != 0 {
			t.Errorf("backlog %d: %+v, %v", number, st, err)
		}
	}
}

// drain delivers everything in a backlog: some events fail first, and some die
// and are replayed. It ends when nothing is left.
func drain(ctx context.Context, check func(string, error), s *mysqlstore.Store, leases []driver.Lease, number int, produced <-chan struct{}) {
	b := s.Driver().Backlogs.Backlog(number)
	for ctx.Err() == nil {
		last := closed(produced)
		p, err := b.Fetch(ctx, cursors(32), 20)
		check("Fetch from a backlog", err)
		due, err := b.Due(ctx, allLanes(), 50)
		check("Due", err)
		set := driver.Settlement{Leases: leases, History: true, Done: results(due.Rows)}
		for i, r := range results(p.Rows) {
			switch i % 4 {
			case 0:
				set.Retry = append(set.Retry, r)
			case 1:
				set.Dead = append(set.Dead, r)
			default:
				set.Done = append(set.Done, r)
			}
		}
		_, err = b.Settle(ctx, set)
		check("Settle in a backlog", err)
		dead, err := b.List(ctx, store.Dead, store.Filter{}, 0, 50)
		check("List", err)
		var ids []waybill.ID
		for _, r := range dead {
			ids = append(ids, r.ID)
		}
		_, err = b.Replay(ctx, ids)
		check("Replay", err)
		if last && len(p.Rows)+len(due.Rows)+len(dead) == 0 {
			return
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// operate repairs a backlog until everything is written.
func operate(ctx context.Context, check func(string, error), s *mysqlstore.Store, number int, produced <-chan struct{}) {
	b, name := s.Driver().Backlogs.Backlog(number), string(rune('a'+number-1))
	var at driver.HistoryCursor
	for !closed(produced) && ctx.Err() == nil {
		refilled, err := b.Refill(ctx, driver.HistoryQuery{}, at, 10)
		check("Refill", err)
		at = refilled.Next
		_, err = s.Driver().Backlogs.PauseDestination(ctx, name, "why")
		check("PauseDestination", err)
		_, err = s.Driver().Backlogs.ResumeDestination(ctx, name)
		check("ResumeDestination", err)
		check("ProbeDestination", s.Driver().Backlogs.ProbeDestination(ctx, name))
		dead, err := b.List(ctx, store.Dead, store.Filter{}, 0, 3)
		check("List", err)
		for _, r := range dead {
			_, err := b.Discard(ctx, []waybill.ID{r.ID})
			check("Discard", err)
		}
		_, err = b.PurgeDead(ctx, time.Hour, 10)
		check("PurgeDead", err)
	}
}

// A backlog without a registered destination has no rows: neither those of the
// outbox nor those of another destination.
func TestBacklogOfNoNumber(t *testing.T) { onBoth(t, testBacklogOfNoNumber) }

func testBacklogOfNoNumber(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a")
	_, leases := own(t, s)
	write(t, s, db, event("a"))
	diverted := ready(t, s)
	settle(t, s, driver.Settlement{Leases: leases, Done: results(diverted), Divert: diversions(diverted, 1)})
	settleIn(t, s, 1, driver.Settlement{Leases: leases, Dead: results(diverted)})
	write(t, s, db, event("a"))
	rows := ready(t, s)
	for _, number := range []int{0, -1, 2, 31, 32, 1000} {
		b := s.Driver().Backlogs.Backlog(number)
		page, err := b.Fetch(t.Context(), cursors(32), 10)
		settled, settleErr := b.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(rows), History: true})
		if err != nil || settleErr != nil || len(page.Rows) != 0 || len(settled.Moved) != 0 || len(settled.Held) != 32 {
			t.Errorf("%d: %d rows, %v; %+v, %v", number, len(page.Rows), err, settled, settleErr)
		}
		found, err := b.Find(t.Context(), diverted[0].ID)
		gone, discardErr := b.Discard(t.Context(), idsOf(diverted))
		if err != nil || discardErr != nil || len(found) != 0 || len(gone) != 0 {
			t.Errorf("%d: an event of another destination: found %+v, %v; discarded %v, %v", number, found, err, gone, discardErr)
		}
	}
	if len(ready(t, s)) != 1 {
		t.Error("the event is gone from the outbox")
	}
}

// A settlement that the server ends because of a deadlock with an operator's
// transaction starts over.
func TestBacklogSettlementStartsOver(t *testing.T) { onBoth(t, testBacklogSettlementStartsOver) }

func testBacklogSettlementStartsOver(t *testing.T) {
	s, db := openStore(t, nil)
	destinations(t, s, "a")
	_, leases := own(t, s)
	write(t, s, db, event("a"), event("b"))
	rows := ready(t, s)
	for _, c := range []struct {
		table  string
		settle func() (driver.Settled, error)
	}{
		{"waybill_outbox", func() (driver.Settled, error) {
			return s.Driver().Relay.Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(rows), Divert: diversions(rows, 1)})
		}},
		{"waybill_backlog", func() (driver.Settled, error) {
			return s.Driver().Backlogs.Backlog(1).Settle(t.Context(), driver.Settlement{Leases: leases, Done: results(rows)})
		}},
	} {
		slices.SortFunc(rows, func(a, b store.Row) int { return slices.Compare(a.ID[:], b.ID[:]) })
		first, last := rows[0].ID, rows[1].ID
		// The server ends the transaction that has changed fewer rows.
		operator := begin(t, db, nil)
		exec(t, operator, "INSERT INTO business (note) SELECT n FROM JSON_TABLE(CONCAT('[', REPEAT('0,', 999), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)) AS t")
		lock := func(id waybill.ID) {
			exec(t, operator, fmt.Sprintf("UPDATE %s SET priority = priority + 1 WHERE id = x'%x'", c.table, id[:]))
		}
		lock(last)
		done := make(chan error, 1)
		go func() {
			settled, err := c.settle()
			if err == nil && len(settled.Moved) != 2 {
				err = fmt.Errorf("settled: %+v", settled)
			}
			done <- err
		}()
		await(t, "the settlement waits", func() bool { return len(done) > 0 || lockWaits(t, db) > 0 })
		lock(first)
		if err := operator.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", c.table, err)
		}
	}
}
