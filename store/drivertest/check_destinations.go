package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destinationChecks check the registry of destinations.
func destinationChecks[T any]() []check[T] {
	return []check[T]{
		{row: "destinations", name: "registered once, with the lowest free numbers", run: registers[T]},
		{row: "destinations", name: "at most 31", run: registersAll[T]},
		{row: "destinations", name: "concurrently", run: registersTogether[T]},
		{row: "destinations", name: "names are bytes", run: destinationNames[T]},
		{row: "destinations", name: "pause and resume", run: pauses[T]},
		{row: "destinations", name: "probe", run: probes[T]},
		{row: "destinations", name: "removed with its rows", run: removesDestination[T]},
		{row: "destinations", name: "not removed while a relay is live", run: removeRefused[T]},
	}
}

// wantRegistered asserts the numbers of all destinations, by name.
func (b *env[T]) wantRegistered(ctx context.Context, t tb, what string, want map[string]int) []store.Destination {
	t.Helper()
	all := b.registered(ctx, t)
	got := map[string]int{}
	for i, d := range all {
		if i > 0 && all[i-1].Number >= d.Number {
			t.Errorf("%s: number %d is listed behind number %d", what, d.Number, all[i-1].Number)
		}
		got[d.Name] = d.Number
	}
	if len(got) != len(all) || fmt.Sprint(got) != fmt.Sprint(want) { // maps are printed in the order of their keys
		t.Errorf("%s: the destinations are %v, want %v", what, got, want)
	}
	return all
}

func registers[T any](ctx context.Context, t tb, b *env[T]) {
	b.wantRegistered(ctx, t, "at first", map[string]int{})
	before := b.now(ctx, t)
	if got := b.register(ctx, t, "b", "a", "b", "c"); !slices.Equal(got, []int{1, 2, 1, 3}) {
		t.Errorf("b, a, b and c got the numbers %v, want 1, 2, 1 and 3", got)
	}
	first := b.wantRegistered(ctx, t, "registered", map[string]int{"b": 1, "a": 2, "c": 3})
	for _, d := range first {
		wantFields(t, d.Name, d, func(want *store.Destination) {
			*want = store.Destination{Number: d.Number, Name: d.Name, CreatedAt: d.CreatedAt}
		})
		if d.CreatedAt.Before(before) || d.CreatedAt.After(b.now(ctx, t)) || !inMicrosUTC(d.CreatedAt) || d.IsPaused() {
			t.Errorf("registered after %v, the destination is %+v", before, d)
		}
	}
	b.tick(ctx, t)
	if got := b.register(ctx, t, "d", "a"); !slices.Equal(got, []int{4, 2}) {
		t.Errorf("d and a got the numbers %v, want 4 and 2", got)
	}
	again := b.wantRegistered(ctx, t, "registered again", map[string]int{"b": 1, "a": 2, "c": 3, "d": 4})
	for i, d := range first {
		want(t, "registered again", again[min(i, len(again)-1)], d)
	}
	some, err := b.DB.Backlogs.AddDestinations(ctx, "c") // all are returned
	if err != nil || !slices.EqualFunc(some, again, func(x, y store.Destination) bool { return fmt.Sprint(x) == fmt.Sprint(y) }) {
		t.Errorf("AddDestinations of one that is registered returned %+v, %v, want %+v", some, err, again)
	}
	// A free number below the others is used again.
	b.removeDestination(ctx, t, "a", 0)
	b.register(ctx, t, "e", "f")
	b.wantRegistered(ctx, t, "removed", map[string]int{"b": 1, "e": 2, "c": 3, "d": 4, "f": 5})
}

func registersAll[T any](ctx context.Context, t tb, b *env[T]) {
	var names []string
	numbers := map[string]int{}
	for i := 1; i <= driver.MaxDestinations; i++ {
		names = append(names, fmt.Sprintf("d%d", i))
		numbers[names[i-1]] = i
	}
	last := names[len(names)-1]
	b.register(ctx, t, names[:len(names)-1]...)
	refused := func(what string, names ...string) {
		t.Helper()
		if _, err := b.DB.Backlogs.AddDestinations(ctx, names...); !errors.Is(err, driver.ErrTooManyDestinations) {
			t.Errorf("%s: AddDestinations returned %v, want ErrTooManyDestinations", what, err)
		}
	}
	delete(numbers, last)
	refused("two names for one number", last, "more")
	refused("two names for one number, and one that is registered", "d1", last, "more")
	b.wantRegistered(ctx, t, "30 and a refused call", numbers)
	b.register(ctx, t, last, last, "d1")
	numbers[last] = driver.MaxDestinations
	refused("no number left", "more")
	refused("no number left, and one that is registered", "d1", "more")
	b.register(ctx, t, names...) // all are registered
	b.wantRegistered(ctx, t, "31", numbers)
	// The last number works like the others.
	leases := b.own(ctx, t)
	b.fill(ctx, t, leases, []int{numbers[last], 1}, b.events(2, "a")...)
	b.end()
	b.removeDestination(ctx, t, last, 2)
	b.removeDestination(ctx, t, "d2", 0)
	if got := b.register(ctx, t, "more"); got[0] != 2 {
		t.Errorf("the only numbers that are free are 2 and 31; a destination got %d", got[0])
	}
}

func registersTogether[T any](ctx context.Context, t tb, b *env[T]) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	for round := range 5 {
		var wg sync.WaitGroup
		for i := range names {
			db := []driver.Roles[T]{b.DB, b.second()}[i%2]
			wg.Go(func() {
				b.stumble(ctx)
				own := []string{names[i], names[(i+1)%len(names)], names[(i+3)%len(names)]}
				all, err := db.Backlogs.AddDestinations(ctx, own...)
				if err != nil {
					t.Errorf("AddDestinations(%q): %v", own, err)
				}
				for _, name := range own {
					if !slices.ContainsFunc(all, func(d store.Destination) bool { return d.Name == name }) {
						t.Errorf("AddDestinations(%q) returned %+v", own, all)
					}
				}
			})
		}
		wg.Wait()
		all := b.registered(ctx, t)
		for i, d := range all {
			if d.Number != i+1 {
				t.Errorf("round %d: destination %d has the number %d", round, i, d.Number)
			}
			b.removeDestination(ctx, t, d.Name, 0)
		}
		if len(all) != len(names) {
			t.Errorf("round %d: %d names are %d destinations: %+v", round, len(names), len(all), all)
		}
	}
}

// destinationNames registers names that a database may fold or pad into others.
func destinationNames[T any](ctx context.Context, t tb, b *env[T]) {
	names := []string{
		"Café", "cafe", "CAFE", "Cafe", "caf_", "caf%", "cafe ", " cafe", `caf\e`, "straße", "strasse", "Ⅷ 😀", "a'b\"c",
		strings.Repeat("x", driver.MaxDestinationName), strings.Repeat("é", driver.MaxDestinationName/2),
	}
	numbers := b.register(ctx, t, names...)
	want := map[string]int{}
	for i, name := range names {
		want[name] = i + 1
		if numbers[i] != i+1 {
			t.Errorf("%q got the number %d, want %d", name, numbers[i], i+1)
		}
	}
	b.register(ctx, t, names...)
	b.wantRegistered(ctx, t, "registered twice", want)
	for _, name := range []string{"", strings.Repeat("x", driver.MaxDestinationName+1), strings.Repeat("é", driver.MaxDestinationName/2) + "x"} {
		if _, err := b.DB.Backlogs.AddDestinations(ctx, "valid", name); err == nil || errors.Is(err, driver.ErrTooManyDestinations) {
			t.Errorf("a name of %d bytes: AddDestinations returned %v", len(name), err)
		}
	}
	b.wantRegistered(ctx, t, "an invalid name", want)
	if ok, err := b.DB.Backlogs.PauseDestination(ctx, "cafe", "why"); err != nil || !ok {
		t.Errorf("PauseDestination: %v, %v", ok, err)
	}
	for _, d := range b.registered(ctx, t) {
		if d.IsPaused() != (d.Name == "cafe") {
			t.Errorf("cafe was paused, and %q is paused: %v", d.Name, d.IsPaused())
		}
	}
	b.removeDestination(ctx, t, "cafe", 0)
	delete(want, "cafe")
	b.wantRegistered(ctx, t, "one removed", want)
}

func pauses[T any](ctx context.Context, t tb, b *env[T]) {
	b.register(ctx, t, "a", "b", "c")
	created := b.registered(ctx, t)
	reason := strings.Repeat("é", 1999) + `'"`
	type switcher func(ctx context.Context, name string) (bool, error)
	pause := func(reason string) switcher {
		return func(ctx context.Context, name string) (bool, error) {
			return b.second().Backlogs.PauseDestination(ctx, name, reason)
		}
	}
	turn := func(what, name string, do switcher, want bool) {
		t.Helper()
		if changed, err := do(ctx, name); err != nil || changed != want {
			t.Errorf("%s %s: %v, %v, want %v", what, name, changed, err, want)
		}
	}
	turn("resuming a destination that is not paused:", "a", b.DB.Backlogs.ResumeDestination, false)
	before := b.now(ctx, t)
	turn("pausing", "b", pause(reason), true)
	after := b.now(ctx, t)
	paused := b.registered(ctx, t)
	for i, d := range paused {
		expected := created[i]
		if d.Name == "b" {
			expected.Reason, expected.PausedAt = reason, d.PausedAt
			if d.PausedAt.Before(before) || d.PausedAt.After(after) || !inMicrosUTC(d.PausedAt) {
				t.Errorf("paused between %v and %v: %v", before, after, d.PausedAt)
			}
		}
		want(t, "paused", d, expected)
	}
	b.tick(ctx, t)
	turn("pausing a destination that is paused:", "b", pause("another reason"), false)
	b.register(ctx, t, "b")
	if got := b.registered(ctx, t); !slices.EqualFunc(got, paused, func(x, y store.Destination) bool { return fmt.Sprint(x) == fmt.Sprint(y) }) {
		t.Errorf("pausing and registering again changed %+v to %+v", paused, got)
	}
	turn("pausing without a reason", "c", pause(""), true)
	turn("resuming", "b", b.DB.Backlogs.ResumeDestination, true)
	turn("resuming again", "b", b.DB.Backlogs.ResumeDestination, false)
	for i, d := range b.registered(ctx, t) {
		expected := created[i]
		if d.Name == "c" {
			expected.PausedAt = d.PausedAt
		}
		if want(t, "b is resumed", d, expected); d.IsPaused() != (d.Name == "c") {
			t.Errorf("c is paused, and b was resumed; %s is paused: %v", d.Name, d.IsPaused())
		}
	}
	turn("pausing after a pause", "b", pause("again"), true)
	for what, do := range map[string]switcher{"PauseDestination": pause("why"), "ResumeDestination": b.DB.Backlogs.ResumeDestination} {
		for _, name := range []string{"unknown", "", "B", "b "} {
			if changed, err := do(ctx, name); !errors.Is(err, driver.ErrNoDestination) || changed {
				t.Errorf("%s of %q: %v, %v, want ErrNoDestination", what, name, changed, err)
			}
		}
	}
}

func probes[T any](ctx context.Context, t tb, b *env[T]) {
	b.register(ctx, t, "a", "b", "c")
	b.node(ctx, t, b.DB.Relay) // a relay may be live
	probe := func(name string) {
		t.Helper()
		known := b.registered(ctx, t)
		before := b.now(ctx, t)
		if err := b.second().Backlogs.ProbeDestination(ctx, name); err != nil {
			t.Fatalf("ProbeDestination: %v", err)
		}
		after := b.now(ctx, t)
		for i, d := range b.registered(ctx, t) {
			expected := known[i]
			if d.Name == name {
				expected.ProbeAt = d.ProbeAt
				if d.ProbeAt.Before(before) || d.ProbeAt.After(after) || !inMicrosUTC(d.ProbeAt) {
					t.Errorf("asked for a probe between %v and %v: %v", before, after, d.ProbeAt)
				}
			}
			want(t, "after a probe of "+name, d, expected)
		}
		b.tick(ctx, t)
	}
	probe("b")
	probe("b")
	if ok, err := b.DB.Backlogs.PauseDestination(ctx, "c", "why"); err != nil || !ok {
		t.Errorf("PauseDestination: %v, %v", ok, err)
	}
	probe("c")
	known := b.registered(ctx, t)
	if ok, err := b.DB.Backlogs.ResumeDestination(ctx, "c"); err != nil || !ok {
		t.Errorf("ResumeDestination: %v, %v", ok, err)
	}
	for _, name := range []string{"unknown", "", "B", "b "} {
		if err := b.DB.Backlogs.ProbeDestination(ctx, name); !errors.Is(err, driver.ErrNoDestination) {
			t.Errorf("ProbeDestination of %q: %v, want ErrNoDestination", name, err)
		}
	}
	for i, d := range b.registered(ctx, t) {
		if !d.ProbeAt.Equal(known[i].ProbeAt) {
			t.Errorf("resumed, the destination is %+v; it was %+v", d, known[i])
		}
	}
}

// removeDestination removes a destination, and asserts how many rows it had.
func (b *env[T]) removeDestination(ctx context.Context, t tb, name string, want int64) {
	t.Helper()
	if n, err := b.DB.Backlogs.RemoveDestination(ctx, name); err != nil || n != want {
		t.Errorf("RemoveDestination(%q) returned %d rows, %v; want %d", name, n, err, want)
	}
}

// threeStates diverts seven events: two stay ready, two are deferred and three
// die, in each of the backlogs. It returns their rows.
func (b *env[T]) threeStates(ctx context.Context, t tb, numbers ...int) []row {
	t.Helper()
	var evs []waybill.Event
	names := b.aggregates(3)
	for i := range 7 {
		evs = append(evs, b.event(names[i%len(names)]))
	}
	leases := b.own(ctx, t)
	rows := b.fill(ctx, t, leases, numbers, evs...)
	s := driver.Settlement{Leases: leases, Retry: results(rows[2:4]), Dead: results(rows[4:])}
	for i := range s.Retry {
		s.Retry[i].Delay, s.Retry[i].Attempts, s.Retry[i].Holds = defaultLease, 1, true
	}
	for i := range s.Dead {
		s.Dead[i].Attempts, s.Dead[i].Holds, s.Dead[i].Error = 9, true, "boom"
	}
	for _, number := range numbers {
		wantMoved(t, settleIn(ctx, t, b.backlog(number), s), rowIDs(rows[2:])...)
	}
	return rows
}

// wantThreeStates asserts that a backlog has the rows of threeStates.
func (b *env[T]) wantThreeStates(ctx context.Context, t tb, what string, number int) {
	t.Helper()
	s, err := b.backlog(number).Stats(ctx)
	if err != nil || s.Ready != 2 || s.Failed != 2 || s.Dead != 3 || s.Scheduled != 0 || s.Holding != 5 {
		t.Errorf("%s: the backlog has %+v, %v; want 2 ready, 2 failed, 3 dead, 5 holding", what, s, err)
	}
}

func removesDestination[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	rows := b.threeStates(ctx, t, numbers...)
	b.end()
	if ok, err := b.DB.Backlogs.PauseDestination(ctx, "b", "why"); err != nil || !ok {
		t.Errorf("PauseDestination: %v, %v", ok, err)
	}
	for _, name := range []string{"unknown", "", "B"} {
		if n, err := b.DB.Backlogs.RemoveDestination(ctx, name); !errors.Is(err, driver.ErrNoDestination) || n != 0 {
			t.Errorf("RemoveDestination(%q) returned %d, %v, want ErrNoDestination", name, n, err)
		}
	}
	removed := b.registered(ctx, t)[1]
	b.tick(ctx, t)
	b.removeDestination(ctx, t, "b", 7)
	b.wantRegistered(ctx, t, "removed", map[string]int{"a": 1, "c": 3})
	b.wantEmpty(ctx, t, "removed", numbers[1])
	if n, err := b.DB.Backlogs.RemoveDestination(ctx, "b"); !errors.Is(err, driver.ErrNoDestination) || n != 0 {
		t.Errorf("RemoveDestination again returned %d, %v, want ErrNoDestination", n, err)
	}
	b.wantThreeStates(ctx, t, "another was removed", numbers[0])
	b.wantThreeStates(ctx, t, "another was removed", numbers[2])
	for _, r := range rows { // the history stays
		if rec, ok := b.where(ctx, t, r.ID); !ok || rec.State != store.Delivered {
			t.Errorf("after RemoveDestination event %s is %+v in the outbox", r.ID, rec)
		}
	}
	// Its number, and its name, are free for a new destination without rows.
	b.register(ctx, t, "b")
	if d := b.registered(ctx, t)[1]; d.Number != 2 || d.IsPaused() || d.Reason != "" || !d.CreatedAt.After(removed.CreatedAt) {
		t.Errorf("registered again, the destination is %+v; it was %+v", d, removed)
	}
	b.wantEmpty(ctx, t, "registered again", numbers[1])
}

func removeRefused[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b")
	b.threeStates(ctx, t, numbers...)
	b.end()
	one, two := b.node(ctx, t, b.second().Relay), b.node(ctx, t, b.DB.Relay)
	if n, err := b.DB.Backlogs.RemoveDestination(ctx, "b"); !errors.Is(err, store.ErrRelayLive) || n != 0 {
		t.Errorf("RemoveDestination beside a live relay returned %d, %v, want ErrRelayLive", n, err)
	}
	b.wantRegistered(ctx, t, "refused", map[string]int{"a": 1, "b": 2})
	b.wantThreeStates(ctx, t, "refused", numbers[1])
	// Other changes are possible while a relay is live.
	b.register(ctx, t, "c")
	b.expire(ctx, t, b.DB.Relay, one, two)
	if err := b.DB.Relay.Leave(ctx, two); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	b.removeDestination(ctx, t, "b", 7) // a dead relay does not count
	b.wantThreeStates(ctx, t, "another was removed", numbers[0])
}
