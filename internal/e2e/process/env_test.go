//go:build linux || darwin

package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/child"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// patience is how long a condition may take to become true: long enough for a
// loaded machine.
const patience = 60 * time.Second

// env is an outbox for one test, and the nodes on it.
type env struct {
	*testing.T
	*tables
	place  place
	folder string
	names  map[string]waybill.ID // aggregate/number
	nodes  []*node
}

func newEnv(t *testing.T, p place) *env {
	t.Helper()
	tables, err := p.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tables.db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := &env{T: t, tables: tables, place: p, folder: t.TempDir(), names: map[string]waybill.ID{}}
	t.Cleanup(func() {
		for _, n := range b.nodes {
			n.Kill()
		}
		if t.Failed() {
			b.tell()
		}
		if err := tables.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// tell logs the nodes' logs and the journal.
func (b *env) tell() {
	for _, r := range b.journal() {
		b.Log(r)
	}
	// the pattern is well formed
	logs, _ := filepath.Glob(filepath.Join(b.folder, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path) // an unreadable log is not shown
		lines := strings.Split(string(text), "\n")
		b.Logf("%s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

// node is a process with a relay.
type node struct {
	*child.Process
	b    *env
	spec spec
}

// start starts a node. It is killed at the latest when the test ends.
func (b *env) start(s spec) *node {
	b.Helper()
	s.Place, s.Folder = b.place, b.folder
	if s.Lease == 0 {
		s.Lease = 1500 * time.Millisecond
	}
	if s.Heartbeat == 0 {
		s.Heartbeat = min(s.Lease/4, 200*time.Millisecond)
	}
	if s.Backoff == 0 {
		s.Backoff = 10 * time.Millisecond
	}
	if s.Poll == 0 {
		s.Poll = 100 * time.Millisecond
	}
	if s.Sweep == 0 {
		s.Sweep = s.Poll
	}
	text, err := json.Marshal(s)
	if err != nil {
		b.Fatal(err)
	}
	p, err := child.Start(nodeVariable + "=" + string(text))
	if err != nil {
		b.Fatal(err)
	}
	n := &node{Process: p, b: b, spec: s}
	b.nodes = append(b.nodes, n)
	return n
}

// signal sends a signal to the node.
func (n *node) signal(sig syscall.Signal) {
	n.b.Helper()
	if err := n.Signal(sig); err != nil {
		n.b.Fatal(err)
	}
}

// pause stops the node, but not while it holds SQLite's only lock: a process
// that is stopped there stops all others, and no protocol prevents that.
func (n *node) pause() {
	n.b.Helper()
	n.b.await("the node can be stopped without a lock", func() bool {
		n.signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		// A node of another name is refused, but only by a connection that
		// could have written.
		if _, err := n.b.db.Discard(ctx, []waybill.ID{waybill.NewID()}); err == nil {
			return true
		}
		n.signal(syscall.SIGCONT)
		return false
	})
}

// end waits until the node has ended by itself, with exit code 0.
func (n *node) end() {
	n.b.Helper()
	select {
	case <-n.Ended():
	case <-time.After(patience):
		n.b.Fatalf("node %s does not end", n.spec.Name)
	}
	if err := n.Wait(); err != nil {
		n.b.Errorf("node %s: %v", n.spec.Name, err)
	}
}

// says reports whether the node's log has a line with all of the parts.
func (n *node) says(parts ...string) bool {
	text, err := os.ReadFile(filepath.Join(n.b.folder, n.spec.Name+".log"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}

// open opens a gate.
func (b *env) open(gate string) {
	b.Helper()
	if err := os.WriteFile(filepath.Join(b.folder, gate), nil, 0o600); err != nil {
		b.Fatal(err)
	}
}

// add commits events in one transaction: aggregate/number, with "" as the
// aggregate of unordered events.
func (b *env) add(names ...string) {
	b.Helper()
	if err := b.write(b.Context(), b.events(names...)...); err != nil {
		b.Fatal(err)
	}
}

// events returns the events that add commits.
func (b *env) events(names ...string) []waybill.Event {
	evs := make([]waybill.Event, len(names))
	for i, name := range names {
		aggregate, number, _ := strings.Cut(name, "/")
		ev := waybill.Event{ID: waybill.NewID(), Type: "Tested", Payload: []byte(number), AggregateType: "thing", AggregateID: aggregate}
		if aggregate == "" {
			ev.AggregateType = ""
		}
		evs[i], b.names[name] = ev, ev.ID
	}
	return evs
}

// series returns the names of the first n events of an aggregate.
func series(aggregate string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s/%d", aggregate, i)
	}
	return out
}

// await waits for a condition.
func (b *env) await(what string, ok func() bool) {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for looked := time.Now(); !ok(); looked = time.Now() {
		select {
		// A look that costs the database much must not slow down the nodes.
		case <-time.After(max(5*time.Millisecond, 3*time.Since(looked))):
		case <-deadline.C:
			s := b.stats()
			b.Fatalf("waited in vain for this: %s; %d ready, %d failed, %d scheduled, %d dead, %d holding, %d nodes",
				what, s.Ready, s.Failed, s.Scheduled, s.Dead, s.Holding, len(s.Nodes))
		}
	}
}

func (b *env) stats() store.Stats {
	b.Helper()
	s, err := b.db.Stats(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// awaitEmpty waits until no event is pending.
func (b *env) awaitEmpty() {
	b.Helper()
	b.await("nothing is pending", func() bool {
		s := b.stats()
		return s.Ready+s.Failed+s.Scheduled == 0
	})
}

// awaitNodes waits until n nodes are live.
func (b *env) awaitNodes(n int) {
	b.Helper()
	b.await(fmt.Sprintf("%d nodes are live", n), func() bool { return len(b.stats().Nodes) == n })
}

// find returns an event's row, in any table.
func (b *env) find(name string) store.Record {
	b.Helper()
	records, err := b.db.Find(b.Context(), b.names[name])
	if err != nil {
		b.Fatal(err)
	}
	if len(records) != 1 {
		b.Fatalf("event %s is in %d tables", name, len(records))
	}
	return records[0]
}

// journal returns the deliveries so far.
func (b *env) journal() []journal.Record {
	b.Helper()
	records, err := journal.Read(filepath.Join(b.folder, journalName))
	if err != nil {
		b.Fatal(err)
	}
	return records
}

// count returns the number of matching records: of a kind, of a node, of an
// event; "" matches all.
func (b *env) count(what, node, name string) int {
	b.Helper()
	return count(b.journal(), what, node, name)
}

func count(records []journal.Record, what, node, name string) int {
	n := 0
	for _, r := range records {
		if (what == "" || r.What == what) && (node == "" || r.Node == node) && (name == "" || r.Name() == name) {
			n++
		}
	}
	return n
}

// wantOK reports events that were not delivered successfully exactly n times.
func (b *env) wantOK(times int, names ...string) {
	b.Helper()
	records := b.journal()
	for _, name := range names {
		if n := count(records, journal.OK, "", name); n != times {
			b.Errorf("event %s was delivered %d times, want %d", name, n, times)
		}
	}
}

// wantDelivered reports events that are not in the history, or were never
// delivered.
func (b *env) wantDelivered(names ...string) {
	b.Helper()
	records := b.journal()
	for _, name := range names {
		if r := b.find(name); r.State != store.Delivered {
			b.Errorf("event %s is %s after %d attempts: %s", name, r.State, r.Attempts, r.LastError)
		}
		if count(records, journal.OK, "", name) == 0 {
			b.Errorf("event %s was not delivered", name)
		}
	}
}

// wantOrder reports events whose delivery began before their predecessor had
// been delivered or was dead. Redeliveries of delivered events do not matter: a
// consumer detects them by their position.
func (b *env) wantOrder(dead ...string) {
	b.Helper()
	done := map[string]bool{}
	for _, name := range dead {
		done[name] = true
	}
	for _, r := range b.journal() {
		var number int
		if _, err := fmt.Sscan(r.Number, &number); err != nil {
			b.Fatal(err)
		}
		before := fmt.Sprintf("%s/%d", r.Aggregate, number-1)
		if r.What == journal.Begin && r.Aggregate != "" && number > 0 && !done[before] {
			b.Errorf("out of order: %s, but %s was not delivered yet", r, before)
		}
		if r.What == journal.OK {
			done[r.Name()] = true
		}
	}
}

// wantEpochs reports epochs that two processes have used, and epochs of one
// process that do not rise.
func (b *env) wantEpochs() {
	b.Helper()
	type fence struct {
		lane  int
		epoch int64
	}
	owner := map[fence]int{}
	for _, r := range b.journal() {
		f := fence{r.Lane, r.Epoch}
		if owner[f] == 0 {
			owner[f] = r.PID
		}
		if owner[f] != r.PID {
			b.Errorf("epoch %d of lane %d belongs to processes %d and %d", r.Epoch, r.Lane, owner[f], r.PID)
		}
	}
}
