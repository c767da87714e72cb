package ledger

import (
	"strings"
	"testing"
)

// TestIsIdle: a relay that delivers what is there has nothing left to do when
// every lane has been read since it was acquired, and no event can be delivered
// or waits for its settlement. Events that wait for something else do not
// count.
func TestIsIdle(t *testing.T) {
	s := newScript(t)
	for _, step := range []struct {
		commands string // separated by ;
		idle     bool
	}{
		{"config batch=4", true}, // a node without lanes
		{"acquire 1", false},
		{"read holds", false},
		{"read writers high=0", false},
		{"read due", false},
		{"read fast", true},
		{"advance 100ms; start fast", false},
		{"answer", true},
		{"wake", false},
		{"read fast", false}, // deferred rows may be due, too
		{"advance 50ms; read due", true},
		{"announce 1:n1", false},
		{"deliver", false},
		{"result n1 ok", false},
		{"settle", false},
		{"settled", true},
		{"advance 2s; read due; read fast 2:e2/a; deliver; result e2 retry; settle; settled", true}, // it is due in 200 ms
		{"advance 160ms", true},
		{"advance 10ms", false}, // it is due soon
		{"advance 30ms; read due e2,attempts=1,holds; wake; advance 50ms; read due; read fast 3:e3/a", false},
		{"deliver; result e2 ok; settle; settled", false}, // e3 is read again
		{"read follow e3; deliver; result e3 ok; settle; settled", true},
		{"advance 4s; read writers high=10; read due; read fast; advance 1100ms; start sweep", false},
		{"answer 1:x1", false}, // a row that committed late
		{"read load x1; deliver; result x1 ok; settle; settled", true},
		{"acquire 2 unclean window=1", false},
		{"read holds; advance 1s; read due; read fast 9:s9,lane=2; deliver", false},
		{"settle; settled", false}, // the attempt is counted
		{"deliver", false},
		{"result s9 ok; settle; settled", true},
		{"advance 2s; wake; read due; read fast 12:m12,to=mail; deliver; result m12 unavailable", true},
		{"distrust", false}, // the open transactions are not known
		{"read writers high=12; read fast; read due", true},
		{"acquire 3", false},
		{"drain 3", true},
	} {
		for command := range strings.SplitSeq(step.commands, ";") {
			if err := s.run(strings.Fields(command)); err != nil {
				t.Fatalf("%s: %v, after\n%s", command, err, strings.Join(s.lines, "\n"))
			}
		}
		if got := s.g.IsIdle(s.now); got != step.idle {
			t.Fatalf("after %s: idle %v, want %v; the results were\n%s", step.commands, got, step.idle, strings.Join(s.lines, "\n"))
		}
	}
	s.g.CommitsWait()
	if s.g.IsIdle(s.now) {
		t.Error("idle, and announcements wait")
	}
}
