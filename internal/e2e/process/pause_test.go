//go:build linux || darwin

package process_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// TestStopped: an owner is stopped for longer than its lease, and another node
// takes over. The settlements of the first node are refused when it continues;
// it notices that its lanes are lost and continues like a new node.
func TestStopped(t *testing.T) {
	everywhere(t, func(b *env) {
		a := b.start(spec{Name: "A", Script: map[string]act{
			"a/0": {Gate: "gate", Deaf: true}, "b/0": {Gate: "gate", Deaf: true, Error: "A says no"},
			"/0": {Gate: "gate", Deaf: true}, "/1": {Gate: "gate", Deaf: true, Error: "A says no"},
		}})
		names := []string{"a/0", "a/1", "b/0", "b/1", "/0", "/1"}
		b.add(names...)
		b.await("four are with the sink", func() bool { return b.count(journal.Begin, "A", "") == 4 })
		a.pause()
		other := b.start(spec{Name: "B", Backoff: time.Hour, Script: map[string]act{
			"a/0": {Error: "B says no"}, "/0": {Error: "B says no"},
		}})
		puts, done := []string{"a/0", "/0"}, []string{"b/0", "b/1", "/1"}
		b.await("B has settled what it can", func() bool {
			for _, name := range puts {
				if r := b.find(name); r.LastError != "B says no" {
					return false
				}
			}
			for _, name := range done {
				if r := b.find(name); r.State != store.Delivered {
					return false
				}
			}
			return true
		})
		before := map[string]store.Record{}
		for _, name := range names {
			before[name] = b.find(name)
		}
		b.open("gate")
		a.signal(syscall.SIGCONT)
		b.await("A has noticed", func() bool { return a.says("lane was lost") })
		// The node becomes a member like any other: it gets a share, or all
		// lanes when the other node leaves.
		other.signal(syscall.SIGTERM)
		other.end()
		b.await("A has all lanes", func() bool {
			s := b.stats()
			for _, l := range s.Lanes {
				if !l.Live || len(s.Nodes) != 1 || l.Owner != s.Nodes[0].ID {
					return false
				}
			}
			return true
		})
		fresh := []string{"c/0", "/2"}
		b.add(fresh...)
		b.await("A delivers again", func() bool { return b.count(journal.OK, "A", "c/0")+b.count(journal.OK, "A", "/2") == 2 })
		for _, name := range names {
			was, is := before[name], b.find(name)
			if is.State != was.State || is.Attempts != was.Attempts || is.LastError != was.LastError || !is.DueAt.Equal(was.DueAt) || !is.EndedAt.Equal(was.EndedAt) {
				b.Errorf("%s was %s (%d attempts, %q), and is now %s (%d attempts, %q): a stale settlement was accepted",
					name, was.State, was.Attempts, was.LastError, is.State, is.Attempts, is.LastError)
			}
		}
		if n := b.count("", "", "a/1"); n != 0 {
			b.Errorf("a/1 was delivered, though a/0 is deferred")
		}
		b.wantEpochs()
		stale := map[int]int64{}
		for _, r := range b.journal() {
			if r.Node == "A" && r.Name() != "c/0" && r.Name() != "/2" {
				stale[r.Lane] = r.Epoch
			}
		}
		for _, r := range b.journal() {
			if (r.Name() == "c/0" || r.Name() == "/2") && r.Epoch <= stale[r.Lane] {
				b.Errorf("A goes on with an old epoch: %s", r)
			}
		}
	})
}

// TestStoppedWithASuspect: a node that was stopped while it had a suspect in
// flight, and lost the lane, delivers other suspects later.
func TestStoppedWithASuspect(t *testing.T) {
	everywhere(t, func(b *env) {
		a := b.start(spec{Name: "A", Script: map[string]act{"a/0": {Gate: "never"}}})
		b.add("a/0")
		b.await("it is with A", func() bool { return b.count(journal.Begin, "A", "a/0") == 1 })
		a.Kill()
		second := b.start(spec{Name: "B", Script: map[string]act{"a/0": {Gate: "gate", Deaf: true}}})
		b.await("it is with B, as a suspect", func() bool { return b.count(journal.Begin, "B", "a/0") == 1 })
		second.pause()
		third := b.start(spec{Name: "C", Script: map[string]act{"b/0": {Gate: "never"}}})
		b.await("C has delivered it", func() bool { return b.count(journal.OK, "C", "a/0") == 1 })
		second.signal(syscall.SIGCONT)
		b.await("B has noticed", func() bool { return second.says("lane was lost") })
		b.open("gate")
		// Either of the two may own the lane now: in the end C is killed with
		// b/0 in flight, and B is left.
		b.await("B has finished", func() bool { return b.count(journal.OK, "B", "a/0") == 1 })
		b.await("no node has an old lane", func() bool { return len(b.stats().Nodes) == 2 })
		b.add("b/0")
		b.await("b/0 is with a node", func() bool { return b.count(journal.Begin, "", "b/0") >= 1 })
		third.Kill()
		b.add("b/1", "c/0", "/0")
		b.awaitEmpty()
		b.wantDelivered("a/0", "b/0", "b/1", "c/0", "/0")
		b.wantOrder()
		b.wantEpochs()
	})
}
