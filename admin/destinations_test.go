package admin_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// A new consumer receives all events of the history, and then those that were
// written meanwhile.
func ExampleDestinations_Replay() {
	ctx, cancel := context.WithCancel(context.Background())
	db, _ := memstore.New(memstore.Config{})
	box, _ := outbox.New(db, outbox.Config{})
	ops, _ := admin.NewDestinations(db, admin.Config{})
	write := func(number int) {
		_ = box.InTx(ctx, func(ctx context.Context, _ *memstore.Tx) error {
			ev := waybill.NewEvent("OrderPlaced", number)
			ev.AggregateType, ev.AggregateID = "order", "all"
			return box.Emit(ctx, ev)
		})
	}
	received := make(chan string)
	start := func(names ...string) (stop func()) {
		var to []relay.Destination
		for _, name := range names {
			to = append(to, relay.Destination{Name: name, Sink: relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
				received <- name + " " + string(d.Payload)
				return nil
			})})
		}
		r, _ := relay.NewTo(db, relay.Config{TakeOver: true}, to...)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		return func() { cancel(); <-done }
	}
	stop := start("billing")
	write(1)
	fmt.Println(<-received)
	stop()

	// A paused destination gets nothing twice: its backlog has each event once.
	_, _, _ = ops.Add(ctx, "archive")
	_, _ = ops.Pause(ctx, "archive", "is new")
	r, _ := ops.Replay(ctx, "archive", driver.HistoryQuery{}, admin.ReplayOptions{})
	fmt.Println("copied:", r.Replayed)
	stop = start("billing", "archive")
	write(2)
	fmt.Println(<-received)
	_, _ = ops.Resume(ctx, "archive")
	fmt.Println(<-received)
	fmt.Println(<-received)
	stop()
	cancel()
	// Output:
	// billing 1
	// copied: 1
	// billing 2
	// archive 1
	// archive 2
}

// ground is a store with destinations.
type ground struct {
	t     *testing.T
	db    *memstore.Store[*memstore.Tx]
	roles driver.Roles[*memstore.Tx]
	ops   *admin.Destinations
	main  *admin.Outbox
	// waked is the number of wake-ups of relays.
	waked int
}

func newGround(t *testing.T, cfg admin.Config, names ...string) *ground {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{t: t, db: db, roles: db.Driver()}
	if g.ops, err = admin.NewDestinations(db, cfg); err != nil {
		t.Fatal(err)
	}
	if g.main, err = admin.NewOutbox(db, cfg); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, added, err := g.ops.Add(t.Context(), name); err != nil || !added {
			t.Fatalf("Add(%s): %v, %v", name, added, err)
		}
	}
	t.Cleanup(g.roles.Relay.Local().Listen(func(driver.Commit) { g.waked++ }))
	return g
}

// write writes events of an aggregate, or unordered ones, and returns their
// ids.
func (g *ground) write(aggregate string, n int) []waybill.ID {
	g.t.Helper()
	box, err := outbox.New(g.db, outbox.Config{})
	if err != nil {
		g.t.Fatal(err)
	}
	ids := make([]waybill.ID, n)
	err = box.InTx(g.t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
		for i := range ids {
			ids[i] = waybill.NewID()
			ev := waybill.NewEvent("Tested", i)
			ev.ID = ids[i]
			if aggregate != "" {
				ev.AggregateType, ev.AggregateID = "order", aggregate
			}
			if err := box.Write(ctx, tx, ev); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return ids
}

// settled delivers all pending events of the outbox, diverts them to
// destinations, and then records results in the backlog of each.
func (g *ground) settled(history bool, change func(d store.Destination, row store.Row, s *driver.Settlement), names ...string) {
	g.t.Helper()
	ctx := g.t.Context()
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	all, err := g.roles.Backlogs.AddDestinations(ctx)
	g.must(err)
	_, err = g.roles.Relay.Heartbeat(ctx, node, time.Minute)
	g.must(err)
	leases, err := g.roles.Relay.Acquire(ctx, node, []int{0, 1, 2, 3}, 100)
	g.must(err)
	from := []driver.Cursor{{Lane: 0}, {Lane: 1}, {Lane: 2}, {Lane: 3}}
	page, err := g.roles.Relay.Fetch(ctx, from, 1000)
	g.must(err)
	s := driver.Settlement{Leases: leases, History: history}
	for _, row := range page.Rows {
		s.Done = append(s.Done, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq})
		for _, d := range all {
			if slices.Contains(names, d.Name) {
				s.Divert = append(s.Divert, driver.Diversion{Destination: d.Number, ID: row.ID})
			}
		}
	}
	_, err = g.roles.Relay.Settle(ctx, s)
	g.must(err)
	for _, d := range all {
		backlog := g.roles.Backlogs.Backlog(d.Number)
		page, err := backlog.Fetch(ctx, from, 1000)
		g.must(err)
		s := driver.Settlement{Leases: leases, History: history}
		for _, row := range page.Rows {
			if change != nil {
				change(d, row, &s)
			}
		}
		_, err = backlog.Settle(ctx, s)
		g.must(err)
	}
	g.must(g.roles.Relay.Leave(ctx, node))
}

func (g *ground) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func result(row store.Row, attempts int, text string) driver.Result {
	return driver.Result{
		Lane: row.Lane, ID: row.ID, Seq: row.Seq, Replay: row.Replay, Attempts: attempts, Error: text, Delay: time.Hour, Holds: row.Event.Ordered(),
	}
}

// TestDestinations counts rows in every state at one of two destinations.
func TestDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told observe.DestinationsInfo
		g := newGround(t, admin.Config{Observe: observe.Hooks{Destinations: func(i observe.DestinationsInfo) { told = i }}}, "billing", "shipping")
		ids := g.write("17", 4)
		pass(time.Minute)
		states := map[waybill.ID]string{ids[0]: "retry", ids[1]: "dead"}
		g.settled(true, func(_ store.Destination, row store.Row, s *driver.Settlement) {
			switch states[row.ID] {
			case "retry":
				s.Retry = append(s.Retry, result(row, 3, "busy"))
			case "dead":
				s.Dead = append(s.Dead, result(row, 1, "never"))
			}
		}, "shipping")
		if done, err := g.ops.Pause(t.Context(), "shipping", "moves"); err != nil || !done {
			t.Fatal(done, err)
		}
		pass(time.Minute)
		all, err := g.ops.List(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		idle, busy := all[0], all[1]
		if idle.Name != "billing" || idle.Rows() != 0 || idle.Lag != 0 || idle.IsPaused() || idle.Behind != 0 {
			t.Errorf("a destination that keeps up: %+v", idle)
		}
		if busy.Name != "shipping" || busy.Ready != 2 || busy.Failed != 1 || busy.Dead != 1 || busy.Holding != 2 || busy.Waiting() != 3 || busy.Rows() != 4 {
			t.Errorf("a destination that is behind: %+v", busy)
		}
		if busy.Behind != 1 || busy.MaxAttempts != 3 || busy.Lag != 2*time.Minute || busy.PausedFor != time.Minute || busy.Reason != "moves" {
			t.Errorf("a destination that is behind: %+v", busy)
		}
		if len(told.Destinations) != 2 || told.Destinations[1] != (observe.Destination{
			Name: "shipping", Paused: true, PausedFor: time.Minute, Behind: 1, Ready: 2, Failed: 1, Dead: 1, Holding: 2, MaxAttempts: 3, Oldest: 2 * time.Minute,
		}) {
			t.Errorf("the observer is told %+v", told)
		}
		if one, err := g.ops.Find(t.Context(), "shipping"); err != nil || !reflect.DeepEqual(one, busy) {
			t.Errorf("Find: %+v, %v", one, err)
		}
	})
}

// TestChangesOfDestinations: every change wakes the relays, and a repeated one
// changes nothing.
func TestChangesOfDestinations(t *testing.T) {
	g := newGround(t, admin.Config{}, "billing")
	ctx := t.Context()
	change := func(what string, want bool, call func() (bool, error)) {
		t.Helper()
		before := g.waked
		if got, err := call(); err != nil || got != want {
			t.Errorf("%s: %v, %v", what, got, err)
		}
		if want && g.waked == before {
			t.Errorf("%s does not wake the relays", what)
		}
	}
	add := func() (bool, error) { _, added, err := g.ops.Add(ctx, "shipping"); return added, err }
	pause := func() (bool, error) { return g.ops.Pause(ctx, "shipping", "moves") }
	resume := func() (bool, error) { return g.ops.Resume(ctx, "shipping") }
	for _, want := range []bool{true, false} {
		change("Add", want, add)
	}
	for _, want := range []bool{true, false} {
		change("Pause", want, pause)
	}
	for _, want := range []bool{true, false} {
		change("Resume", want, resume)
	}
	change("Probe", true, func() (bool, error) { return true, g.ops.Probe(ctx, "shipping") })
	if d, err := g.ops.Find(ctx, "shipping"); err != nil || d.ProbeAt.IsZero() || d.IsPaused() {
		t.Errorf("%+v, %v", d, err)
	}
	g.write("", 3)
	g.settled(true, nil, "shipping")
	_, err := g.roles.Relay.Heartbeat(ctx, store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Minute)
	g.must(err)
	if _, err := g.ops.Remove(ctx, "shipping"); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("Remove while a relay is live: %v", err)
	}
}

func TestRemoveADestination(t *testing.T) {
	g := newGround(t, admin.Config{}, "billing", "shipping")
	g.write("", 3)
	g.settled(true, nil, "shipping")
	before := g.waked
	if n, err := g.ops.Remove(t.Context(), "shipping"); err != nil || n != 3 || g.waked == before {
		t.Errorf("%d rows, %d wake-ups, %v", n, g.waked-before, err)
	}
	if all, err := g.ops.List(t.Context()); err != nil || len(all) != 1 || all[0].Name != "billing" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestUnknownDestinations: the error of every method lists the known names.
func TestUnknownDestinations(t *testing.T) {
	for _, known := range [][]string{nil, {"billing", "shipping"}} {
		g := newGround(t, admin.Config{}, known...)
		ctx := t.Context()
		want := `admin: unknown destination "biling": the outbox has billing, shipping`
		if known == nil {
			want = `admin: unknown destination "biling": the outbox has no destinations`
		}
		for name, call := range map[string]func() error{
			"Find":         func() error { _, err := g.ops.Find(ctx, "biling"); return err },
			"Pause":        func() error { _, err := g.ops.Pause(ctx, "biling", ""); return err },
			"Resume":       func() error { _, err := g.ops.Resume(ctx, "biling"); return err },
			"Probe":        func() error { return g.ops.Probe(ctx, "biling") },
			"Remove":       func() error { _, err := g.ops.Remove(ctx, "biling"); return err },
			"Outbox":       func() error { _, err := g.ops.Outbox(ctx, "biling"); return err },
			"CountHistory": func() error { _, err := g.ops.CountHistory(ctx, "biling", driver.HistoryQuery{}); return err },
			"Replay": func() error {
				_, err := g.ops.Replay(ctx, "biling", driver.HistoryQuery{}, admin.ReplayOptions{})
				return err
			},
		} {
			err := call()
			var unknown *admin.UnknownDestinationError
			if !errors.Is(err, driver.ErrNoDestination) || !errors.As(err, &unknown) || !slices.Equal(unknown.Known, known) || err.Error() != want {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestInvalidArgumentsOfDestinations: nothing reaches the store.
func TestInvalidArgumentsOfDestinations(t *testing.T) {
	g := newGround(t, admin.Config{}, "billing")
	ctx := t.Context()
	now := time.Now()
	add := func(name string) func() error { return func() error { _, _, err := g.ops.Add(ctx, name); return err } }
	pause := func(reason string) func() error {
		return func() error { _, err := g.ops.Pause(ctx, "billing", reason); return err }
	}
	replay := func(q driver.HistoryQuery, o admin.ReplayOptions) func() error {
		return func() error { _, err := g.ops.Replay(ctx, "billing", q, o); return err }
	}
	nan := 0.0
	nan /= nan
	for what, c := range map[string]struct {
		call func() error
		want string
	}{
		"no name":             {add(""), "is empty"},
		"a long name":         {add(strings.Repeat("x", 65)), "has 65 bytes, at most 64"},
		"a space":             {add("a b"), `contains a space or a control character: "a b"`},
		"a line break":        {add("a\nb"), "contains a space or a control character"},
		"bytes":               {add("a\xff"), "is not valid UTF-8"},
		"a long reason":       {pause(strings.Repeat("x", 4001)), "the reason of a pause has 4001 bytes, at most 4000"},
		"a reason of bytes":   {pause("a\xff"), "the reason of a pause is not valid text"},
		"a reason with a NUL": {pause("a\x00"), "the reason of a pause is not valid text"},
		"a negative limit":    {replay(driver.HistoryQuery{}, admin.ReplayOptions{Limit: -1}), "ReplayOptions.Limit: -1 is negative"},
		"a negative rate":     {replay(driver.HistoryQuery{}, admin.ReplayOptions{Rate: -1}), "ReplayOptions.Rate: -1 is not a number of events per second"},
		"no rate":             {replay(driver.HistoryQuery{}, admin.ReplayOptions{Rate: nan}), "ReplayOptions.Rate: NaN"},
		"exchanged times":     {replay(driver.HistoryQuery{Since: now, Until: now.Add(-time.Hour)}, admin.ReplayOptions{}), "is not before Until"},
		"the future":          {replay(driver.HistoryQuery{Since: now.Add(time.Hour)}, admin.ReplayOptions{}), "is in the future"},
	} {
		if err := c.call(); !errors.Is(err, admin.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range driver.MaxDestinations {
		_, _, err := g.ops.Add(ctx, fmt.Sprint("d", i))
		if full := i == driver.MaxDestinations-1; errors.Is(err, driver.ErrTooManyDestinations) != full {
			t.Errorf("destination %d: %v", i+2, err)
		}
	}
}

// TestNewDestinationsNeedsRoles names the roles that a store lacks.
func TestNewDestinationsNeedsRoles(t *testing.T) {
	roles := newGround(t, admin.Config{}).roles
	roles.Backlogs = nil
	var missing *driver.MissingRoleError
	if _, err := admin.NewDestinations(roles, admin.Config{}); !errors.As(err, &missing) || !slices.Equal(missing.Lacks, []string{"Backlogs"}) {
		t.Errorf("without Backlogs: %v", err)
	}
	if _, err := admin.NewDestinations(newGround(t, admin.Config{}).db, admin.Config{BatchSize: -1}); err == nil {
		t.Error("a negative batch size was accepted")
	}
	roles.Restorer = nil
	ops, err := admin.NewOutbox(roles, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ops.Restored(t.Context(), false); err == nil || !strings.Contains(err.Error(), "the role Restorer") {
		t.Errorf("Restored without the role: %v", err)
	}
}
