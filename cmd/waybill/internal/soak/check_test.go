package soak

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// history is the evidence of a run with one relay that hands its lane over, two
// aggregates, a delayed event and a request.
type history struct {
	notes    []note
	entries  []entry
	effects  []effect
	accounts map[int][2]int64
	requests [][2]int64 // number of the key, answer
}

// origin is the beginning of every history.
var origin = time.Unix(1_800_000_000, 0)

func at(ms int) int64 { return origin.Add(time.Duration(ms) * time.Millisecond).UnixNano() }

// ids are the events of the history: three of aggregate 0, two of aggregate 1,
// and a delayed one.
func ids() []waybill.ID {
	out := make([]waybill.ID, 6)
	for i := range out {
		out[i] = waybill.ID{0: 1, 15: byte(i + 1)}
	}
	return out
}

// healthy returns a history in which every promise is kept.
func healthy() *history {
	h := &history{accounts: map[int][2]int64{0: {3, 60}, 1: {2, 90}}, requests: [][2]int64{{1, 77}}}
	h.notes = append(h.notes, note{Kind: noteAcquire, At: at(0), Items: []item{{Lane: 1, Epoch: 1, Window: 10}}})
	for i, id := range ids() {
		e := entry{id: id, name: 0, number: int64(i + 1), amount: int64(10 * (i + 1)), topic: "a", payload: 5, headers: 6, at: time.Unix(0, at(i))}
		switch {
		case i == 5:
			e.name, e.number, e.amount, e.due = unordered, 0, 1, time.Unix(0, at(500))
		case i >= 3:
			e.name, e.number, e.topic = 1, int64(i-2), "b"
		}
		published := at(100 + i)
		if i == 5 {
			published = at(501)
		}
		h.entries = append(h.entries, e)
		h.notes = append(h.notes,
			note{Kind: noteTx, Text: committed, Items: []item{{ID: id}}},
			note{Kind: noteBegin, At: published, Items: []item{{ID: id, Lane: 1, Epoch: 1, Seq: int64(i + 1)}}},
			note{Kind: noteEnd, At: published, Items: []item{{ID: id}}},
			note{Kind: noteGot, Text: e.topic, Items: []item{{ID: id, Payload: 5, Headers: 6}}})
		h.effects = append(h.effects, effect{id: id, name: e.name, number: e.number, amount: e.amount, place: e.number, at: time.Unix(0, published)})
	}
	h.notes = append(h.notes,
		note{Kind: noteSettle, Begun: at(600), Items: []item{{Lane: 1, Epoch: 1}}},
		note{Kind: noteAcquire, At: at(700), Items: []item{{Lane: 1, Epoch: 2, Window: 2, Unclean: true}}},
		note{Kind: noteSettle, Begun: at(800), Items: []item{{Lane: 1, Epoch: 2}}},
		note{Kind: noteAsk, Text: "1", Value: 77}, note{Kind: noteAsk, Text: "1", Value: 77})
	return h
}

// check returns the promises that the history breaks.
func (h *history) check() []Finding {
	t := newTally()
	for i := range h.notes {
		t.add("relay0#1", &h.notes[i])
	}
	c := newChecker(t)
	for _, e := range h.entries {
		c.entry(e)
	}
	slices.SortStableFunc(h.effects, func(a, b effect) int {
		if a.name != b.name {
			return a.name - b.name
		}
		return int(a.place - b.place)
	})
	for _, e := range h.effects {
		c.effect(e)
	}
	for name, sums := range h.accounts {
		c.account(name, sums[0], sums[1])
	}
	for _, r := range h.requests {
		c.request(string(rune('0'+r[0])), r[1])
	}
	c.finish()
	return c.sorted()
}

// of returns the note of a kind about an event.
func (h *history) of(kind string, id waybill.ID) *note {
	i := slices.IndexFunc(h.notes, func(n note) bool { return n.Kind == kind && len(n.Items) > 0 && n.Items[0].ID == id })
	return &h.notes[i]
}

// without removes the notes about an event, its effect, and its amount.
func (h *history) without(id waybill.ID, kinds ...string) {
	h.notes = slices.DeleteFunc(h.notes, func(n note) bool { return slices.Contains(kinds, n.Kind) && n.Items[0].ID == id })
	i := slices.IndexFunc(h.effects, func(e effect) bool { return e.id == id })
	e := h.effects[i]
	h.effects = slices.Delete(h.effects, i, i+1)
	if sums, ok := h.accounts[e.name]; ok {
		h.accounts[e.name] = [2]int64{sums[0] - 1, sums[1] - e.amount}
	}
}

// TestCheck: a history without a broken promise has no finding, and each broken
// one has findings of its promise and of no other.
func TestCheck(t *testing.T) {
	if found := healthy().check(); len(found) > 0 {
		t.Fatalf("a healthy history: %v", found)
	}
	for name, c := range map[string]struct {
		promise Promise
		broken  func(h *history)
	}{
		"never published": {Delivered, func(h *history) { h.without(ids()[2], noteBegin, noteEnd, noteGot) }},
		"never received":  {Delivered, func(h *history) { h.without(ids()[2], noteGot) }},
		"never applied":   {Delivered, func(h *history) { h.without(ids()[2]) }},
		"delayed never":   {Delivered, func(h *history) { h.without(ids()[5], noteBegin, noteEnd, noteGot) }},
		"rolled back": {CommittedOnly, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteGot, Text: "a", Items: []item{{ID: waybill.NewID()}}})
		}},
		"only published": {CommittedOnly, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteBegin, At: at(1), Items: []item{{ID: waybill.NewID(), Lane: 1, Epoch: 1, Seq: 99}}})
		}},
		"claimed": {Outcomes, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteTx, Text: committed, Items: []item{{ID: waybill.NewID()}}})
		}},
		"denied":             {Outcomes, func(h *history) { h.of(noteTx, ids()[1]).Text = rolledBack }},
		"swapped":            {Ordered, func(h *history) { h.effects[1].place, h.effects[2].place = 3, 2 }},
		"applied twice":      {Once, func(h *history) { again := h.effects[1]; again.place = 4; h.effects = append(h.effects, again) }},
		"applied in the sum": {Once, func(h *history) { h.accounts[0] = [2]int64{4, 70} }},
		"another amount":     {Once, func(h *history) { h.accounts[0] = [2]int64{3, 61} }},
		"payload":            {Unchanged, func(h *history) { h.of(noteGot, ids()[0]).Items[0].Payload = 9 }},
		"headers":            {Unchanged, func(h *history) { h.of(noteGot, ids()[0]).Items[0].Headers = 9 }},
		"payload of a repeat": {Unchanged, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteGot, Text: "a", Items: []item{{ID: ids()[0], Payload: 9, Headers: 6}}})
		}},
		"other topic": {Routed, func(h *history) { h.of(noteGot, ids()[0]).Text = "b" }},
		"other topic, too": {Routed, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteGot, Text: "b", Items: []item{{ID: ids()[0], Payload: 5, Headers: 6}}})
		}},
		"early":               {NotEarly, func(h *history) { h.of(noteBegin, ids()[5]).At = at(400) }},
		"second effect":       {OneEffect, func(h *history) { h.requests = append(h.requests, [2]int64{1, 78}) }},
		"no effect":           {OneEffect, func(h *history) { h.requests = nil }},
		"other answer":        {SameAnswer, func(h *history) { h.notes = append(h.notes, note{Kind: noteAsk, Text: "1", Value: 78}) }},
		"answer of no effect": {SameAnswer, func(h *history) { h.requests[0][1] = 78 }},
		"position twice":      {Positions, func(h *history) { h.of(noteBegin, ids()[1]).Items[0].Seq = 1 }},
		"epoch twice": {Positions, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteAcquire, At: at(750), Items: []item{{Lane: 1, Epoch: 2}}})
		}},
		"stale owner": {Fenced, func(h *history) {
			h.notes = append(h.notes, note{Kind: noteSettle, Begun: at(701), Items: []item{{Lane: 1, Epoch: 1}}})
		}},
		"too many duplicates":    {Duplicates, func(h *history) { h.again(3) }},
		"duplicates for nothing": {Duplicates, func(h *history) { h.again(1); h.clean() }},
	} {
		t.Run(name, func(t *testing.T) {
			h := healthy()
			c.broken(h)
			found := h.check()
			if len(found) == 0 {
				t.Fatalf("the checker does not see that %s is broken", c.promise)
			}
			for _, f := range found {
				if f.Promise != c.promise {
					t.Errorf("want only %s, found %s: %s", c.promise, f.Promise, f.Text)
				}
			}
		})
	}
}

// again publishes the first event n times more.
func (h *history) again(n int) {
	for range n {
		h.notes = append(h.notes, note{Kind: noteEnd, Items: []item{{ID: ids()[0]}}})
	}
}

// clean makes every hand-over a clean one.
func (h *history) clean() {
	for _, n := range h.notes {
		for i := range n.Items {
			n.Items[i].Unclean = false
		}
	}
}

// TestDuplicatesWithinTheBound: what the failures of relays explain is no
// finding.
func TestDuplicatesWithinTheBound(t *testing.T) {
	h := healthy()
	h.again(2)
	if found := h.check(); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// TestEverySabotageHasAPromise: a new kind names its role and its promise.
// The processes of a run have the settings of its store.
func TestPlaceOfKeepsSettings(t *testing.T) {
	cfg := Config{Store: settings.Store{URL: settings.NewSecret("mysql://a:b@c/d"), OneNode: true}}
	s, err := placeOf(&cfg, "soak_1")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.storeSettings(); !got.OneNode || got.Prefix != "soak_1_" {
		t.Errorf("the settings are %+v", got)
	}
}

func TestEverySabotageHasAPromise(t *testing.T) {
	if len(sabotages) < 12 {
		t.Errorf("%d kinds of sabotage, want at least 12", len(sabotages))
	}
	for kind, s := range sabotages {
		known := false
		for _, p := range promises {
			known = known || p.name == s.promise
		}
		if s.role == "" || !known {
			t.Errorf("%s: role %q, promise %q", kind, s.role, s.promise)
		}
	}
}

// TestPlan: the faults depend on the seed alone, and a spared role has none.
func TestPlan(t *testing.T) {
	draw := func(seed uint64, spared string) []fault {
		return newPlan(seed, time.Second, 3*time.Second, spared).due(10 * time.Minute)
	}
	first := draw(1, "")
	if !slices.Equal(first, draw(1, "")) {
		t.Error("one seed has two plans")
	}
	if slices.Equal(first, draw(2, "")) {
		t.Error("two seeds have one plan")
	}
	kinds := make(map[string]int)
	for _, f := range first {
		kinds[f.kind+" "+f.role]++
	}
	for _, h := range harms {
		if canPause && kinds[h.kind+" "+h.role] == 0 {
			t.Errorf("no fault in ten minutes: %s %s", h.kind, h.role)
		}
	}
	if slices.ContainsFunc(draw(1, roleRelay), func(f fault) bool { return f.role == roleRelay }) {
		t.Error("a relay is harmed that should be spared")
	}
}

// TestHistogram: a percentile is at most 5 % above the true one.
func TestHistogram(t *testing.T) {
	var h histogram
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for percent, want := range map[float64]time.Duration{50: 500 * time.Millisecond, 99: 990 * time.Millisecond, 100: time.Second} {
		if got := h.at(percent); got < want || got > want*106/100 {
			t.Errorf("p%v is %v, want %v", percent, got, want)
		}
	}
}
