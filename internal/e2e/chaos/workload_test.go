//go:build linux || darwin

package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/e2e/process/child"
	"github.com/waybillhq/waybill/internal/e2e/process/server"
	"github.com/waybillhq/waybill/store"
)

// workload runs the processes and injects faults.
type workload struct {
	t      *testing.T
	seed   uint64
	role   role
	server *server.Postgres
	ops    *admin.Outbox
	units  []*unit
	begun  time.Time
	wg     sync.WaitGroup // of the work beside the schedule

	mu       sync.Mutex
	tally    map[string]int
	crashes  []outage
	down     bool
	replayed int
	wrong    []string // reasons of a failed test
}

func (d *workload) errorf(format string, args ...any) {
	d.t.Helper()
	text := fmt.Sprintf(format, args...)
	d.t.Error(text)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrong = append(d.wrong, text)
}

// unit is a process that is restarted when it has ended.
type unit struct {
	role    role
	process *child.Process
	doomed  string // the reason of its expected end
	// when a stopped process continues; zero if it is not stopped
	wake  time.Time
	start time.Time // when it is restarted
}

// harm is one item of the schedule.
type harm struct {
	at   time.Duration
	what string
	who  int
	long time.Duration
}

// The harms, and how often each occurs.
var harms = []struct {
	what   string
	weight float64
}{
	{"kill relay", 0.20},
	{"stop relay", 0.15},
	{"stop relay for long", 0.15},
	{"terminate relay", 0.08},
	{"kill producer", 0.10},
	{"stop producer", 0.05},
	{"destination down", 0.12},
	{"replay", 0.15},
}

const (
	relays    = 3
	producers = 2
)

// schedule draws the harms and their times from the seed alone.
func schedule(seed uint64, total time.Duration) []harm {
	rng := rand.New(rand.NewPCG(seed, 1))
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(rng.Int64N(int64(to-from))) }
	out := []harm{{at: total/3 + between(0, total/3), what: "crash server"}}
	for at := between(0, 2*time.Second); at < total; at += between(200*time.Millisecond, 1400*time.Millisecond) {
		u := rng.Float64()
		h := harm{at: at}
		for _, c := range harms {
			h.what = c.what
			if u -= c.weight; u < 0 {
				break
			}
		}
		switch h.what {
		case "kill producer", "stop producer":
			h.who, h.long = rng.IntN(producers), between(50*time.Millisecond, 3*time.Second)
		case "stop relay for long":
			h.who, h.long = rng.IntN(relays), between(lease+lease/10, 3*lease)
		case "destination down":
			h.who, h.long = rng.IntN(len(destinations())), between(100*time.Millisecond, 3*time.Second)
		default:
			h.who, h.long = rng.IntN(relays), between(10*time.Millisecond, lease*3/4)
		}
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b harm) int { return cmp.Compare(a.at, b.at) })
	return out
}

// run executes the schedule.
func (d *workload) run(ctx context.Context, plan []harm, total time.Duration) {
	d.begun = time.Now()
	for i := range relays {
		r := d.role
		r.Kind, r.Name = "relay", string(rune('A'+i))
		d.units = append(d.units, &unit{role: r})
	}
	for i := range producers {
		r := d.role
		r.Kind, r.Name = "producer", fmt.Sprint("P", i)
		d.units = append(d.units, &unit{role: r})
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for time.Since(d.begun) < total && !d.t.Failed() {
		d.tend()
		for len(plan) > 0 && time.Since(d.begun) >= plan[0].at {
			d.do(ctx, plan[0])
			plan = plan[1:]
		}
		<-tick.C
	}
	d.wg.Wait()
}

// tend handles processes that have ended, or must continue.
func (d *workload) tend() {
	now := time.Now()
	for _, u := range d.units {
		switch {
		case u.process == nil && now.After(u.start):
			d.launch(u)
		case u.process != nil && !u.process.Alive():
			d.ended(u)
			u.start = now.Add(time.Duration(roll(d.seed, "again", u.role.Name, u.role.Life) * float64(lease*3/2)))
		case u.process != nil && !u.wake.IsZero() && now.After(u.wake):
			u.wake = time.Time{}
			d.signal(u, syscall.SIGCONT)
		}
	}
}

func (d *workload) launch(u *unit) {
	text, err := json.Marshal(u.role)
	if err != nil {
		d.t.Fatal(err)
	}
	if u.process, err = child.Start(roleVariable + "=" + string(text)); err != nil {
		d.t.Fatal(err)
	}
	u.role.Life++
	u.doomed, u.wake = "", time.Time{}
}

// ended judges the end of a process: a panic or a data race fails the test.
func (d *workload) ended(u *unit) {
	err := u.process.Wait()
	u.process = nil
	var exit *exec.ExitError
	killed, early := false, false
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		killed = ok && status.Signaled() && status.Signal() == syscall.SIGKILL
		early = ok && status.Signaled() && status.Signal() == syscall.SIGTERM
	}
	switch {
	case killed && u.doomed == "kill":
	case killed:
		d.count(u.role.Kind + " killed itself")
	case err == nil && u.doomed == "terminate":
	case early && u.doomed == "terminate": // before it could handle the signal
	case d.serverAway():
		d.count(u.role.Kind + " gave up without a server")
	default:
		d.errorf("%s %s has ended: %v", u.role.Kind, u.role.Name, err)
	}
}

// serverAway reports whether the server was down a short while ago.
func (d *workload) serverAway() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.down || slices.ContainsFunc(d.crashes, func(o outage) bool { return time.Since(o.to) < 10*time.Second })
}

func (d *workload) count(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally[what]++
}

func (d *workload) signal(u *unit, sig syscall.Signal) {
	if err := u.process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}

// do injects one harm.
func (d *workload) do(ctx context.Context, h harm) {
	u := d.units[h.who%relays]
	switch h.what {
	case "kill producer", "stop producer":
		u = d.units[relays+h.who]
	case "destination down":
		d.count(h.what)
		d.wg.Go(func() { d.destinationDown(destinations()[h.who], h.long) })
		return
	case "replay":
		d.wg.Go(func() { d.replay(ctx) })
		return
	case "crash server":
		d.count(h.what)
		d.wg.Go(func() { d.crash(ctx) })
		return
	}
	if u.process == nil || u.doomed != "" {
		return // not running
	}
	switch h.what {
	case "kill relay", "kill producer":
		u.doomed = "kill"
		d.signal(u, syscall.SIGKILL)
	case "terminate relay":
		u.doomed = "terminate"
		d.signal(u, syscall.SIGTERM)
	default:
		if !u.wake.IsZero() {
			return
		}
		u.wake = time.Now().Add(h.long)
		d.signal(u, syscall.SIGSTOP)
	}
	d.count(h.what)
}

func (d *workload) destinationDown(name string, long time.Duration) {
	path := d.role.downFile(name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		d.errorf("%v", err)
	}
	<-time.After(long)
	// it may have been down twice
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		d.errorf("%v", err)
	}
}

// replay replays all dead letters, unless the server is unavailable.
func (d *workload) replay(ctx context.Context) {
	out, err := d.ops.ReplayAll(ctx, store.Filter{}, admin.DeadLetterOptions{})
	d.mu.Lock()
	d.replayed += len(out.IDs)
	d.mu.Unlock()
	if err != nil && !d.serverAway() {
		d.errorf("replay: %v", err)
	}
}

// crash crashes the server and restarts it.
func (d *workload) crash(ctx context.Context) {
	d.mu.Lock()
	d.down = true
	d.mu.Unlock()
	o := outage{from: time.Now()}
	err := errors.Join(d.server.Crash(ctx), d.server.Restart(ctx))
	o.to = time.Now()
	d.mu.Lock()
	d.down = false
	d.crashes = append(d.crashes, o)
	d.mu.Unlock()
	if err != nil {
		d.errorf("crash: %v", err)
	}
}

// patience bounds the end of a run.
const patience = 2 * time.Minute

// heal ends all faults, lets the producers finish, and waits until every event
// is delivered and the relays have stopped.
func (d *workload) heal(ctx context.Context) {
	if err := os.WriteFile(d.role.Folder+"/"+healthyFile, nil, 0o600); err != nil {
		d.t.Fatal(err)
	}
	for _, u := range d.units {
		if u.process == nil {
			continue
		}
		u.wake = time.Time{}
		d.signal(u, syscall.SIGCONT)
		if u.role.Kind == "producer" && u.doomed == "" {
			u.doomed = "terminate"
			d.signal(u, syscall.SIGTERM)
		}
	}
	d.await("the producers have ended", func() bool {
		return !slices.ContainsFunc(d.units[relays:], func(u *unit) bool { return u.process != nil && u.process.Alive() })
	})
	for _, u := range d.units[relays:] {
		if u.process != nil {
			d.ended(u)
		}
	}
	// Relays contain producers: they are restarted without them.
	d.units = d.units[:relays]
	d.stopRelays()
	for _, u := range d.units {
		u.role.Quiet = true
	}
	var last store.Stats
	d.await("everything is delivered", func() bool {
		d.tend()
		d.replay(ctx)
		s, err := d.ops.Stats(ctx)
		last = s.Stats
		return err == nil && s.Ready+s.Failed+s.Scheduled+s.Dead == 0
	})
	if d.t.Failed() {
		d.t.Logf("%d ready, %d failed, %d scheduled, %d dead, %d holding, %d nodes", last.Ready, last.Failed, last.Scheduled, last.Dead, last.Holding, len(last.Nodes))
	}
	d.stopRelays()
}

// stopRelays terminates all relays and waits for them.
func (d *workload) stopRelays() {
	for _, u := range d.units {
		if u.process != nil && u.doomed == "" {
			u.doomed = "terminate"
			d.signal(u, syscall.SIGTERM)
		}
	}
	d.await("the relays have ended", func() bool {
		return !slices.ContainsFunc(d.units, func(u *unit) bool { return u.process != nil && u.process.Alive() })
	})
	for _, u := range d.units {
		if u.process != nil && !u.process.Alive() {
			d.ended(u)
		}
	}
}

// kill ends the remaining processes.
func (d *workload) kill() {
	for _, u := range d.units {
		if u.process != nil {
			u.process.Kill()
		}
	}
}

func (d *workload) await(what string, ok func() bool) {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			d.errorf("waited in vain for this: %s", what)
			return
		}
		<-tick.C
	}
}
