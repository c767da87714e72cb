package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// die makes every row of the backlogs a dead letter.
func die(_ store.Destination, row store.Row, s *driver.Settlement) {
	s.Dead = append(s.Dead, result(row, 2, "refused"))
}

// TestOutboxOfADestination: the functions of an outbox work on the backlog of
// one destination, and on nothing else.
func TestOutboxOfADestination(t *testing.T) {
	told := 0
	g := newGround(t, admin.Config{BatchSize: 2, Observe: observe.Hooks{Backlog: func(observe.BacklogInfo) { told++ }}}, "billing", "shipping")
	ctx := t.Context()
	ids := g.write("17", 5)
	g.settled(true, die, "billing", "shipping")
	there, err := g.ops.Outbox(ctx, "shipping")
	g.must(err)
	if s, err := there.Stats(ctx); err != nil || s.Dead != 5 || s.Ready != 0 || told != 0 {
		t.Errorf("Stats: %+v, %v; the observer was told %d times", s, err, told)
	}
	page, err := there.List(ctx, store.Dead, store.Filter{}, 0, 3)
	if err != nil || len(page.Records) != 3 || page.Next == 0 || page.Records[0].ID != ids[0] {
		t.Errorf("List: %+v, %v", page, err)
	}
	if page, err := there.List(ctx, store.Delivered, store.Filter{}, 0, 3); err != nil || len(page.Records) != 0 {
		t.Errorf("delivered events: %+v, %v", page, err)
	}
	if r, err := there.Find(ctx, ids[1]); err != nil || r.State != store.Dead || r.LastError != "refused" {
		t.Errorf("Find: %+v, %v", r, err)
	}
	if _, err := there.Find(ctx, waybill.NewID()); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("Find of an unknown event: %v", err)
	}
	blocked, err := there.Blocked(ctx, 10)
	if err != nil || len(blocked) != 1 || blocked[0].By.ID != ids[0] {
		t.Errorf("Blocked: %+v, %v", blocked, err)
	}
	if done, err := there.Unblock(ctx, ids[0]); err != nil || !slices.Equal(done, ids[:1]) {
		t.Errorf("Unblock: %v, %v", done, err)
	}
	before := g.waked
	r, err := there.Replay(ctx, ids[0])
	if err != nil || !slices.Equal(r.IDs, ids[:1]) || g.waked == before {
		t.Errorf("Replay: %+v, %v, %d wake-ups", r, err, g.waked-before)
	}
	j, err := there.Journey(ctx, ids[1])
	if err != nil || j.State != store.Dead || len(j.Waiting) != 0 {
		t.Errorf("Journey: %+v, %v", j, err)
	}
	if gone, err := there.Discard(ctx, ids[1]); err != nil || !slices.Equal(gone, ids[1:2]) {
		t.Errorf("Discard: %v, %v", gone, err)
	}
	if r, err := there.ReplayAll(ctx, store.Filter{}, admin.DeadLetterOptions{}); err != nil || len(r.IDs) != 3 {
		t.Errorf("ReplayAll: %+v, %v", r, err)
	}
	if gone, err := there.DiscardAll(ctx, store.Filter{}, admin.DeadLetterOptions{}); err != nil || len(gone) != 0 {
		t.Errorf("DiscardAll: %v, %v", gone, err)
	}
	all, err := g.ops.List(ctx)
	if err != nil || all[0].Dead != 5 || all[0].Scheduled != 0 || all[1].Dead != 0 || all[1].Scheduled != 4 {
		t.Errorf("List: %+v, %v", all, err)
	}
}

// TestNotInABacklog: functions of the outbox as a whole are refused.
func TestNotInABacklog(t *testing.T) {
	g := newGround(t, admin.Config{}, "billing")
	ctx := t.Context()
	there, err := g.ops.Outbox(ctx, "billing")
	g.must(err)
	for name, call := range map[string]func() error{
		"SetLanes":     func() error { return there.SetLanes(ctx, 8) },
		"PurgeWritten": func() error { _, err := there.PurgeWritten(ctx, time.Hour, nil); return err },
		"MakeReady":    func() error { _, err := there.MakeReady(ctx); return err },
		"Capturer":     func() error { _, err := there.Capturer(admin.Capture{}); return err },
		"Restored":     func() error { _, err := there.Restored(ctx, true); return err },
	} {
		if err := call(); !errors.Is(err, admin.ErrBacklog) || !strings.HasPrefix(err.Error(), "admin: not possible in the backlog of a destination: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPurgeOfBacklogs: dead letters of all destinations are purged with those
// of the outbox, or those of one destination alone.
func TestPurgeOfBacklogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rows int
		g := newGround(t, admin.Config{Observe: observe.Hooks{Purged: func(i observe.PurgedInfo) {
			if i.Kind == "dead" {
				rows += i.Rows
			}
		}}}, "billing", "shipping")
		ctx := t.Context()
		g.write("", 5)
		g.settled(true, die, "billing", "shipping")
		pass(time.Hour)
		once := func(ops *admin.Outbox, k admin.Retention) admin.Purged {
			t.Helper()
			k.PurgeBatchSize = 2
			p, err := ops.Purger(k)
			g.must(err)
			gone, err := p.Once(ctx, nil)
			g.must(err)
			return gone
		}
		there, err := g.ops.Outbox(ctx, "billing")
		g.must(err)
		for _, k := range []admin.Retention{{}, {Dead: 2 * time.Hour}} {
			if gone := once(g.main, k); gone != (admin.Purged{}) {
				t.Errorf("with %+v, %+v were purged", k, gone)
			}
		}
		if gone := once(there, admin.Retention{Dead: time.Minute, History: time.Minute}); gone != (admin.Purged{Dead: 5}) {
			t.Errorf("of one destination, %+v were purged", gone)
		}
		if n, err := g.main.Count(ctx, store.Delivered, store.Filter{}); err != nil || n != 5 {
			t.Errorf("the history has %d events, %v", n, err)
		}
		g.write("", 3)
		g.settled(true, die, "billing")
		pass(time.Hour)
		if gone := once(g.main, admin.Retention{Dead: time.Minute}); gone != (admin.Purged{Dead: 8}) || rows != 13 {
			t.Errorf("of all destinations, %+v were purged; the observer was told %d", gone, rows)
		}
	})
}

// TestJourneyToDestinations: the journey of an event says which destinations
// have yet to receive it, and why.
func TestJourneyToDestinations(t *testing.T) {
	for _, history := range []bool{true, false} {
		g := newGround(t, admin.Config{}, "billing", "shipping", "partner")
		ctx := t.Context()
		ids := g.write("17", 2)
		g.settled(history, func(d store.Destination, row store.Row, s *driver.Settlement) {
			if row.ID == ids[0] {
				die(d, row, s)
			}
		}, "shipping", "partner")
		_, err := g.ops.Pause(ctx, "partner", "moves")
		g.must(err)
		j, err := g.main.Journey(ctx, ids[0])
		if err != nil || len(j.Waiting) != 2 {
			t.Fatalf("history %v: %+v, %v", history, j, err)
		}
		shipping, partner := j.Waiting[0], j.Waiting[1]
		if shipping.Destination.Name != "shipping" || shipping.State != store.Dead || shipping.Attempts != 2 || shipping.LastError != "refused" ||
			shipping.Destination.IsPaused() || shipping.Behind != nil {
			t.Errorf("at shipping: %+v", shipping)
		}
		if partner.Destination.Name != "partner" || partner.Destination.Reason != "moves" {
			t.Errorf("at partner: %+v", partner)
		}
		last, want := j.Steps[len(j.Steps)-1].What, "delivered, but not to shipping, partner"
		state := store.Delivered
		if !history {
			want, state = "left the outbox; the history does not have it", store.Dead
		}
		if last != want || j.State != state {
			t.Errorf("history %v: %v, %q", history, j.State, last)
		}
		if j, err = g.main.Journey(ctx, ids[1]); err != nil || len(j.Waiting) != 2 || j.Waiting[0].State != store.Ready ||
			j.Waiting[0].Behind == nil || j.Waiting[0].Behind.ID != ids[0] {
			t.Errorf("an event behind another one: %+v, %v", j, err)
		}
		if r, err := g.main.Find(ctx, ids[0]); err != nil || r.State != state || r.ID != ids[0] {
			t.Errorf("history %v: Find: %+v, %v", history, r, err)
		}
	}
}

// TestRestored: the positions are raised, and the result says what may be
// delivered again.
func TestRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{}, "billing")
		ctx := t.Context()
		empty, err := g.main.Restored(ctx, false)
		if err != nil || empty != (admin.Restored{Epochs: driver.RestoreEpochs, Seqs: driver.RestoreSeqs}) {
			t.Errorf("an outbox without events: %+v, %v", empty, err)
		}
		var at []time.Time
		step := func() { pass(time.Hour); at = append(at, time.Now()) }
		step()
		g.write("", 1)
		g.settled(true, nil) // delivered everywhere
		step()
		g.write("", 2)
		g.settled(true, nil, "billing") // billing has not received it
		step()
		g.write("", 3)
		step()
		before, err := g.main.Stats(ctx)
		g.must(err)
		r, err := g.main.Restored(ctx, false)
		if err != nil || r.Pending != 5 || !r.Since.Equal(at[1]) || !r.Until.Equal(at[2]) {
			t.Errorf("%+v, %v; want since %v until %v", r, err, at[1], at[2])
		}
		after, err := g.main.Stats(ctx)
		g.must(err)
		for i, l := range after.Lanes {
			if got := l.Epoch - before.Lanes[i].Epoch; got != driver.RestoreEpochs {
				t.Errorf("the epoch of lane %d was raised by %d", l.Lane, got)
			}
		}
		_, err = g.roles.Relay.Heartbeat(ctx, store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Minute)
		g.must(err)
		if r, err := g.main.Restored(ctx, false); !errors.Is(err, store.ErrRelayLive) || r != (admin.Restored{}) {
			t.Errorf("while a relay is live: %+v, %v", r, err)
		}
		if _, err := g.main.Restored(ctx, true); err != nil {
			t.Errorf("force: %v", err)
		}
	})
}

// away is a registry that fails, or whose backlogs fail.
type away struct {
	driver.Backlogs
	registered bool
}

func (a away) AddDestinations(context.Context, ...string) ([]store.Destination, error) {
	if a.registered {
		return []store.Destination{{Number: 1, Name: "billing"}}, nil
	}
	return nil, errAway
}

func (away) PauseDestination(context.Context, string, string) (bool, error) { return false, errAway }

func (away) ResumeDestination(context.Context, string) (bool, error)  { return false, errAway }
func (away) ProbeDestination(context.Context, string) error           { return errAway }
func (away) RemoveDestination(context.Context, string) (int64, error) { return 0, errAway }
func (away) Backlog(int) driver.Backlog                               { return awayRows{} }

type awayRows struct{ driver.Backlog }

func (awayRows) Stats(context.Context) (store.Stats, error) { return store.Stats{}, errAway }

func (awayRows) Find(context.Context, waybill.ID) ([]store.Record, error) { return nil, errAway }

func (awayRows) PurgeDead(context.Context, time.Duration, int) (int, error) { return 0, errAway }

func (awayRows) Count(context.Context, store.State, store.Filter) (int64, error) { return 0, errAway }

// TestErrorsOfDestinationsAreReturned: no error is turned into an empty result.
func TestErrorsOfDestinationsAreReturned(t *testing.T) {
	for _, registered := range []bool{true, false} {
		g := newGround(t, admin.Config{})
		id := g.write("", 1)[0]
		roles := g.roles
		roles.Backlogs = away{roles.Backlogs, registered}
		ops, err := admin.NewDestinations(roles, admin.Config{})
		g.must(err)
		main, err := admin.NewOutbox(roles, admin.Config{})
		g.must(err)
		p, err := main.Purger(admin.Retention{Dead: time.Hour})
		g.must(err)
		ctx := t.Context()
		calls := map[string]func() error{
			"List":         func() error { _, err := ops.List(ctx); return err },
			"Find":         func() error { _, err := ops.Find(ctx, "billing"); return err },
			"Pause":        func() error { _, err := ops.Pause(ctx, "billing", ""); return err },
			"Resume":       func() error { _, err := ops.Resume(ctx, "billing"); return err },
			"Probe":        func() error { return ops.Probe(ctx, "billing") },
			"Remove":       func() error { _, err := ops.Remove(ctx, "billing"); return err },
			"CountHistory": func() error { _, err := ops.CountHistory(ctx, "billing", driver.HistoryQuery{}); return err },
			"Journey":      func() error { _, err := main.Journey(ctx, id); return err },
			"Find of none": func() error { _, err := main.Find(ctx, waybill.NewID()); return err },
			"Purger.Once":  func() error { _, err := p.Once(ctx, nil); return err },
			"Restored":     func() error { _, err := main.Restored(ctx, false); return err },
		}
		if !registered {
			calls["Add"] = func() error { _, _, err := ops.Add(ctx, "billing"); return err }
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, errAway) || !strings.HasPrefix(err.Error(), "admin: ") {
				t.Errorf("%s returned %v", name, err)
			}
		}
	}
}
