//go:build linux || darwin

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
)

// story builds evidence by hand.
type story struct {
	evidence
	clock time.Time
}

// noon is the start time of stories.
func noon() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC) }

// sound returns evidence of a run with many faults and no broken guarantee:
// lane 0 belongs to A, which is killed, then to B; a/1 and a/2 are delivered,
// a/2 twice; a/3 is dead and replayed, and overtaken by a/4 meanwhile; one
// event is unordered.
func sound() *story {
	s := &story{clock: noon()}
	s.limits = limits{maxAttempts: 3, window: 10, lanes: 1, flush: time.Second, late: time.Second}
	s.faults = faults{kills: 1}
	s.acquire("A", 1)
	for n := 1; n <= 4; n++ {
		s.ledger = append(s.ledger, entry{id: fmt.Sprint("a", n), aggregate: "a", number: n})
	}
	s.ledger = append(s.ledger, entry{id: "u", number: 7, due: s.clock.Add(time.Second)})
	s.claims = []claim{{[]string{"a1", "a2"}, committed}, {[]string{"x"}, rolledBack}, {[]string{"a3"}, uncertain}, {[]string{"y"}, uncertain}}
	s.deliver("A", 1, "a1", 1, 0, journal.OK)
	s.settle("A", 1, "a1", "history", 0, 0)
	s.deliver("A", 1, "a2", 1, 0, journal.OK) // then A is killed
	s.acquire("B", 2)
	s.count("B", 2, "a2", 1)
	s.deliver("B", 2, "a2", 1, 0, journal.OK)
	s.settle("B", 2, "a2", "history", 1, 0)
	for i := range 3 {
		s.deliver("B", 2, "a3", i+1, 0, journal.Failed)
		if i < 2 {
			s.count("B", 2, "a3", i+1)
		}
	}
	s.settle("B", 2, "a3", "dead", 3, 0)
	s.deliver("B", 2, "a4", 1, 0, journal.OK)
	s.settle("B", 2, "a4", "history", 0, 0)
	s.moves = append(s.moves, move{table: "delayed", op: "INSERT", id: "a3", replay: 1, app: "operator", at: s.now()})
	s.deliver("B", 2, "a3", 1, 1, journal.OK)
	s.settle("B", 2, "a3", "history", 0, 1)
	s.clock = s.clock.Add(time.Second)
	s.deliver("B", 2, "u", 1, 0, journal.OK)
	s.settle("B", 2, "u", "history", 0, 0)
	s.history = []string{"a1", "a2", "a3", "a4", "u"}
	return s
}

func (s *story) now() time.Time {
	s.clock = s.clock.Add(time.Millisecond)
	return s.clock
}

func (s *story) acquire(node string, epoch int64) {
	s.lanes = append(s.lanes, tenure{epoch: epoch, token: fmt.Sprint("token", epoch), app: app(node, 1)})
}

func (s *story) deliver(node string, epoch int64, id string, attempt, replay int, what string) {
	r := journal.Record{What: journal.Begin, ID: id, Attempt: attempt, Replay: replay, Epoch: epoch, Node: node, PID: 1, At: s.now()}
	s.journal = append(s.journal, r)
	r.What, r.At = what, s.now()
	s.journal = append(s.journal, r)
}

func (s *story) settle(node string, epoch int64, id, table string, attempts, replay int) {
	at := s.now()
	s.moves = append(
		s.moves,
		move{table: "delayed", op: "DELETE", id: id, epoch: epoch, attempts: attempts, replay: replay, app: app(node, 1), at: at},
		move{table: table, op: "INSERT", id: id, epoch: epoch, attempts: attempts, replay: replay, app: app(node, 1), at: at},
	)
}

func (s *story) count(node string, epoch int64, id string, attempts int) {
	s.moves = append(s.moves, move{table: "delayed", op: "UPDATE", id: id, epoch: epoch, attempts: attempts, app: app(node, 1), at: s.now()})
}

// drop removes records.
func (s *story) drop(unwanted func(r journal.Record) bool) {
	s.journal = slices.DeleteFunc(s.journal, unwanted)
}

// TestCheckerSound: the checker reports nothing for a run without violations.
func TestCheckerSound(t *testing.T) {
	sum, bad := check(sound().evidence)
	if len(bad) != 0 {
		t.Errorf("%v", bad)
	}
	want := summary{events: 5, deliveries: 9, successes: 6, duplicates: 1, bound: 10, died: 1}
	if sum != want {
		t.Errorf("%+v, want %+v", sum, want)
	}
}

// TestCheckerComplains: the checker reports every broken guarantee, and no
// other.
func TestCheckerComplains(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules []string
		spoil func(s *story)
	}{
		{"never delivered", []string{ruleLost}, func(s *story) {
			s.drop(func(r journal.Record) bool { return r.ID == "u" })
		}},
		{"tried and never delivered", []string{ruleLost}, func(s *story) {
			s.drop(func(r journal.Record) bool { return r.ID == "u" && r.What == journal.OK })
		}},
		{"only a success counts for those behind it", []string{ruleLost, ruleOrder}, func(s *story) {
			for i := range s.journal {
				if s.journal[i].ID == "a2" && s.journal[i].What == journal.OK {
					s.journal[i].What = journal.Failed
				}
			}
		}},
		{"not in the ledger", []string{rulePhantom}, func(s *story) { s.deliver("B", 2, "x", 1, 0, journal.OK) }},
		{"overtaken", []string{ruleOrder}, func(s *story) {
			s.moves = slices.DeleteFunc(s.moves, func(m move) bool { return m.id == "a3" && m.table == "dead" })
		}},
		{"overtaken by one attempt", []string{ruleOrder}, func(s *story) {
			// A begins a/2 before the end of a/1 is recorded, as if both were
			// in flight.
			s.journal[1], s.journal[2] = s.journal[2], s.journal[1]
		}},
		{"the dead letter came later", []string{ruleOrder}, func(s *story) {
			for i := range s.moves {
				if s.moves[i].table == "dead" {
					s.moves[i].at = s.clock
				}
			}
		}},
		{"a gap in the ledger", []string{ruleLeft, rulePhantom}, func(s *story) {
			s.ledger = slices.DeleteFunc(s.ledger, func(e entry) bool { return e.id == "a3" })
			s.claims = nil
		}},
		{"settled by another node", []string{ruleStale}, func(s *story) {
			s.moves = append(s.moves, move{table: "delayed", op: "UPDATE", id: "a4", epoch: 2, app: app("A", 1), at: noon()})
		}},
		{"one epoch, two owners", []string{ruleEpoch}, func(s *story) {
			s.lanes = append(s.lanes, tenure{epoch: 2, token: "another", app: app("B", 1)})
		}},
		{"an epoch left out", []string{ruleEpoch}, func(s *story) {
			s.lanes = append(s.lanes, tenure{epoch: 4, token: "another", app: app("C", 1)})
		}},
		{"a token used again", []string{ruleEpoch}, func(s *story) {
			s.lanes = append(s.lanes, tenure{epoch: 3, token: "token1", app: app("C", 1)})
		}},
		{"delivered under another node's epoch", []string{ruleEpoch, ruleTwice}, func(s *story) {
			s.deliver("C", 2, "a2", 1, 0, journal.OK)
			s.moves = slices.DeleteFunc(s.moves, func(m move) bool { return m.id == "a2" && m.table == "history" })
		}},
		{"delivered again by its owner", []string{ruleAgain, ruleTwice}, func(s *story) { s.deliver("B", 2, "a4", 1, 0, journal.OK) }},
		{"delivered again by the next owner", []string{ruleAgain}, func(s *story) { s.deliver("B", 2, "a1", 1, 0, journal.OK) }},
		{"delivered twice by its owner, before it was settled", []string{ruleTwice}, func(s *story) {
			s.journal = append(s.journal, s.journal[2], s.journal[3])
		}},
		{"dead too soon", []string{ruleDead}, func(s *story) {
			for i := range s.moves {
				if s.moves[i].table == "dead" {
					s.moves[i].attempts = 2
				}
			}
		}},
		{"outages counted", []string{ruleAttempts}, func(s *story) {
			for i := range s.journal {
				if s.journal[i].ID == "a3" && s.journal[i].What == journal.Failed {
					s.journal[i].What = journal.Down
				}
			}
		}},
		{"more attempts than nodes can have left", []string{ruleAttempts}, func(s *story) {
			for i := range s.moves {
				if m := &s.moves[i]; m.id == "a4" || m.id == "a1" {
					m.attempts = 2
				}
			}
		}},
		{"too many duplicates", []string{ruleDuplicates}, func(s *story) { s.limits.window = 0 }},
		{"left behind", []string{ruleLeft}, func(s *story) { s.pending = 1 }},
		{"not in the history", []string{ruleLeft}, func(s *story) { s.history = s.history[1:] }},
		{"twice in the history", []string{ruleLeft}, func(s *story) { s.history = append(s.history, "u") }},
		{"a stranger in the history", []string{ruleLeft}, func(s *story) { s.history = append(s.history, "x") }},
		{"said to be committed", []string{ruleClaim}, func(s *story) { s.claims[3].Outcome = committed }},
		{"said to be rolled back", []string{ruleClaim}, func(s *story) { s.claims[2].Outcome = rolledBack }},
		{"before its time", []string{ruleEarly}, func(s *story) { s.ledger[4].due = s.clock }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound()
			c.spoil(s)
			_, bad := check(s.evidence)
			got := byRule(bad)
			for _, rule := range c.rules {
				if got[rule] == 0 {
					t.Errorf("it does not see this: %s", rule)
				}
				delete(got, rule)
			}
			if len(got) != 0 {
				t.Errorf("it also says %v", sorted(bad))
			}
		})
	}
}

// TestCheckerAllows: the checker does not report allowed behavior.
func TestCheckerAllows(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(s *story)
	}{
		{"a process that goes on after a stop repeats what it had", func(s *story) {
			s.faults.longStops++
			s.deliver("A", 1, "a2", 1, 0, journal.Failed)
		}},
		{"a transaction that was open for long", func(s *story) {
			s.journal[1], s.journal[2] = s.journal[2], s.journal[1]
			s.ledger[0].open = 2 * time.Second
		}},
		{"the server has forgotten", func(s *story) {
			s.crashes = []outage{{s.clock, s.now()}}
			s.moves = slices.DeleteFunc(s.moves, func(m move) bool { return m.id == "u" })
			s.deliver("B", 2, "u", 1, 0, journal.OK)
			s.settle("B", 2, "u", "history", 0, 0)
		}},
		{"an attempt that a kill has cut off", func(s *story) {
			s.deliver("A", 1, "a1", 1, 0, journal.Down)
			for i := range s.moves {
				if s.moves[i].id == "a1" {
					s.moves[i].at, s.moves[i].attempts = s.clock, 2
				}
			}
		}},
		{"refused at once", func(s *story) {
			for i := range s.moves {
				if s.moves[i].table == "dead" {
					s.moves[i].attempts = 1
				}
			}
			s.drop(func(r journal.Record) bool { return r.ID == "a3" && r.Attempt > 1 })
			s.moves = slices.DeleteFunc(s.moves, func(m move) bool { return m.id == "a3" && m.attempts > 1 && m.table != "dead" })
			for i := range s.journal {
				if s.journal[i].What == journal.Failed {
					s.journal[i].What = journal.Refused
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound()
			c.spoil(s)
			if _, bad := check(s.evidence); len(bad) != 0 {
				t.Errorf("%v", sorted(bad))
			}
		})
	}
}

// TestRefused: a server error about a statement is a fault of the relay; an
// error about an unavailable server is not.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	text := `level=INFO msg="relay started"
level=WARN msg="reading failed" error="FATAL: the database system is starting up (SQLSTATE 57P03)"
level=WARN msg="settling failed" error="pgstore: unexpected EOF"
level=WARN msg="settling failed" error="ERROR: duplicate key value (SQLSTATE 23505)"
level=WARN msg="settling failed" error="ERROR: deadlock detected (SQLSTATE 40P01)"
`
	if err := os.WriteFile(filepath.Join(folder, "A.log"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := refused(folder); len(got) != 2 || !strings.Contains(got[0], "A.log: ") || !strings.Contains(got[0], "23505") || !strings.Contains(got[1], "40P01") {
		t.Errorf("refused: %q", got)
	}
}
