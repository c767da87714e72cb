//go:build linux || darwin

package process_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// TestGracefulStop: at SIGTERM, deliveries in flight finish and settle, the
// lanes are released, and another node acquires them at once: with a lease of
// an hour, only released lanes can be acquired.
func TestGracefulStop(t *testing.T) {
	everywhere(t, func(b *env) {
		held := map[string]act{"a/0": {Gate: "gate"}, "b/0": {Gate: "gate"}}
		a := b.start(spec{Name: "A", Script: held, Lease: time.Hour, Drain: time.Minute})
		b.add("a/0", "a/1", "a/2", "b/0")
		b.await("two are with the sink", func() bool { return b.count(journal.Begin, "A", "") == 2 })
		b.start(spec{Name: "B", Lease: time.Hour})
		b.awaitNodes(2)
		a.signal(syscall.SIGTERM)
		b.await("A has stopped taking work", func() bool { return a.says("relay stopping") })
		b.add("c/0", "/0")
		b.open("gate")
		a.end()
		b.awaitEmpty()
		all := []string{"a/0", "a/1", "a/2", "b/0", "c/0", "/0"}
		b.wantOK(1, all...)
		b.wantDelivered(all...)
		b.wantOrder()
		b.wantEpochs()
		for _, name := range []string{"a/0", "b/0"} {
			if b.count(journal.OK, "A", name) != 1 {
				b.Errorf("%s was not finished by its node", name)
			}
		}
		for _, name := range all {
			if r := b.find(name); r.Attempts != 0 {
				b.Errorf("%s: %d attempts were counted", name, r.Attempts)
			}
		}
		s := b.stats()
		if len(s.Nodes) != 1 {
			b.Errorf("%d nodes are live, want B alone", len(s.Nodes))
		}
		b.await("B has all lanes", func() bool {
			return !slices.ContainsFunc(b.stats().Lanes, func(l store.LaneState) bool { return !l.Live })
		})
	})
}

// TestDrainTimeout: deliveries that have not finished by the drain timeout stay
// pending, uncounted, and are repeated after a restart, even if the sink
// ignores its context.
func TestDrainTimeout(t *testing.T) {
	everywhere(t, func(b *env) {
		script := map[string]act{"a/0": {Gate: "never", Deaf: true}, "b/0": {Gate: "never"}, "/0": {Gate: "never"}}
		a := b.start(spec{Name: "A", Script: script, Drain: 200 * time.Millisecond, Workers: 3})
		names := []string{"a/0", "a/1", "b/0", "b/1", "/0"}
		b.add(names...)
		b.await("three are with the sink", func() bool { return b.count(journal.Begin, "A", "") == 3 })
		b.add("c/0") // no worker is left for it
		names = append(names, "c/0")
		a.signal(syscall.SIGTERM)
		a.end()
		if n := b.count(journal.Ended, "A", ""); n != 2 {
			b.Errorf("%d deliveries were told that their time is over, want the 2 that listen", n)
		}
		if n := b.count(journal.Begin, "A", ""); n != 3 {
			b.Errorf("%d deliveries were begun, want 3", n)
		}
		s := b.stats()
		if s.Ready != int64(len(names)) || s.Failed != 0 || s.Scheduled != 0 || s.Dead != 0 || s.MaxAttempts != 0 || len(s.Nodes) != 0 {
			b.Errorf("%d ready, %d failed, %d scheduled, %d dead, %d attempts, %d nodes; want %d ready, and nothing else",
				s.Ready, s.Failed, s.Scheduled, s.Dead, s.MaxAttempts, len(s.Nodes), len(names))
		}
		b.start(spec{Name: "A2"})
		b.awaitEmpty()
		b.wantOK(1, names...)
		b.wantDelivered(names...)
		b.wantOrder()
		b.wantEpochs()
		for _, r := range b.journal() {
			if r.Attempt != 1 {
				b.Errorf("a stop was counted as an attempt: %s", r)
			}
		}
	})
}
