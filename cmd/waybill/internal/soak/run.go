package soak

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// tickEvery is the interval of the parent's work.
const tickEvery = 20 * time.Millisecond

// The phases of a run.
const (
	loading  = "load"
	draining = "drain"
	checking = "check"
)

// load runs the load and the faults until the time has passed, enough events
// are committed, or ctx ends.
func (w *world) load(ctx context.Context) error {
	w.started, w.phase = time.Now(), loading
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	go w.watch(watching)
	for ctx.Err() == nil && !w.enough() {
		if err := w.turn(ctx); err != nil {
			return err
		}
		for _, f := range w.plan.due(time.Since(w.started)) {
			w.harm(ctx, f)
		}
	}
	w.ended = time.Now()
	return nil
}

// enough reports whether the load has lasted long enough.
func (w *world) enough() bool {
	lasted := time.Since(w.started)
	if w.cfg.Sabotage != "" && len(w.tally.spoiled) > 0 && lasted > w.leastSabotage() && time.Since(w.tally.spoiledAt) > w.cfg.Lease {
		return true
	}
	if w.cfg.Sabotage != "" && w.cfg.Sabotage != Stale && w.cfg.Sabotage != Position && len(w.tally.spoiled) > 3 {
		return true
	}
	return lasted >= w.cfg.For || w.cfg.Events > 0 && w.tally.committed >= w.cfg.Events
}

// leastSabotage is how long a run with a sabotage lasts at least: its
// consequences may need a take-over.
func (w *world) leastSabotage() time.Duration { return 4 * w.cfg.Lease }

// turn handles messages until the next tick, and then what is due.
func (w *world) turn(ctx context.Context) error {
	tick := time.NewTimer(tickEvery)
	defer tick.Stop()
	for {
		select {
		case got := <-w.fleet.inbox:
			w.receive(got)
			continue
		case p := <-w.probes:
			w.note(p)
			continue
		case <-ctx.Done():
		case <-tick.C:
		}
		break
	}
	if err := w.tend(); err != nil {
		return err
	}
	w.view.show(w)
	return nil
}

// receive handles a message of a child.
func (w *world) receive(got message) {
	if !got.ended {
		if got.note.Kind == noteUp {
			got.from.up, got.from.failures = true, 0
			return
		}
		if got.note.Kind == noteErr {
			got.note.Text = w.clean.Clean(got.note.Text)
		}
		if got.note.Kind == noteDie {
			got.from.doomed = "its own death"
			if got.from.spec.Role == roleRelay {
				w.died(got.name, time.Unix(0, got.note.At))
			}
		}
		w.tally.add(got.name, &got.note)
		return
	}
	w.over(got)
}

// over handles the end of a child.
func (w *world) over(got message) {
	m := got.from
	m.cmd, m.wake = nil, time.Time{}
	m.start = time.Now().Add(w.cfg.Lease / 10)
	if crash := w.fleet.crashed(m); crash != "" {
		w.tally.findings.add(Running, "%s: %s; its log is %s", got.name, w.clean.Clean(crash), w.fleet.log(m))
		return
	}
	expected := m.doomed != "" && (killed(got.err) || got.err == nil)
	if expected {
		return
	}
	// A server that does not answer ends no process that has connected, but
	// prevents a start.
	m.failures++
	m.start = time.Now().Add(time.Second)
	w.tally.errors[m.spec.Role+" ended"]++
	if m.failures >= 20 {
		w.tally.findings.add(Running, "%s ended %d times in a row: %v: %s", got.name, m.failures, got.err, w.clean.Clean(w.fleet.lastLine(m)))
		m.failures = 0
	}
}

// tend starts members that have ended, and continues those that were paused.
func (w *world) tend() error {
	now := time.Now()
	for _, m := range w.fleet.members {
		switch {
		case m.cmd == nil && !m.retired && now.After(m.start):
			if w.phase != loading {
				m.spec.Die = 0
			}
			if m.spec.Role == roleRequester {
				m.spec.First = len(w.tally.requests)
			}
			if err := w.fleet.launch(m); err != nil {
				return fmt.Errorf("%w: a child process does not start: %w", ErrConfig, err)
			}
		case m.cmd != nil && !m.wake.IsZero() && now.After(m.wake):
			m.wake = time.Time{}
			_ = continueProcess(m.cmd.Process) // it may have been killed
		}
	}
	return nil
}

// harm injects a fault into a child.
func (w *world) harm(ctx context.Context, f fault) {
	all := w.fleet.ofRole(f.role)
	m := all[f.who%len(all)]
	if !m.running() {
		return
	}
	switch f.kind {
	case kill:
		m.doomed = kill
		if f.role == roleRelay {
			w.died(m.name(), time.Now())
		}
		_ = m.cmd.Process.Kill() // its end is handled in any case
	case stop:
		m.doomed = stop
		_ = stopProcess(m.cmd.Process)
	default:
		if !w.freeze(ctx, m) {
			return
		}
		m.wake = time.Now().Add(f.long)
	}
	w.faults[f.kind+" "+f.role]++
}

// freeze pauses a child, but not while it holds the only lock of SQLite: every
// other process would wait for it, and no protocol prevents that.
func (w *world) freeze(ctx context.Context, m *member) bool {
	if pauseProcess(m.cmd.Process) != nil {
		return false
	}
	if w.store.Kind != connect.SQLite {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := w.store.SQL.ExecContext(ctx, w.names.fill(`UPDATE {source} SET n = n WHERE name = -1`)); err == nil {
		return true
	}
	_ = continueProcess(m.cmd.Process)
	return false
}

// patience is how long the drain waits without any progress.
const patience = 45 * time.Second

// drain ends the load, lets the relays and consumers finish, and stops them.
func (w *world) drain(ctx context.Context) error {
	w.phase = draining
	for _, m := range w.fleet.members {
		if m.cmd != nil && !m.wake.IsZero() {
			m.wake = time.Time{}
			_ = continueProcess(m.cmd.Process)
		}
	}
	if err := w.retire(ctx, roleProducer, roleRequester); err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	err := w.retire(ctx, roleRelay, roleConsumer)
	w.phase = checking
	return err
}

// retire stops the members of some roles, and waits for them.
func (w *world) retire(ctx context.Context, roles ...string) error {
	var all []*member
	for _, role := range roles {
		all = append(all, w.fleet.ofRole(role)...)
	}
	deadline := time.Now().Add(2 * txTimeout)
	for dismiss(all, time.Now().After(deadline)) > 0 {
		if err := w.turn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dismiss stops members, or kills them, and returns how many are left.
func dismiss(members []*member, now bool) int {
	left := 0
	for _, m := range members {
		m.retired = true
		if m.cmd == nil {
			continue
		}
		left++
		switch {
		case now:
			_ = m.cmd.Process.Kill() // its end is handled in any case
		case m.doomed == "" && m.up:
			m.doomed = stop
			_ = stopProcess(m.cmd.Process)
		}
	}
	return left
}

// settle waits until every committed event has an effect, or until there is no
// progress.
func (w *world) settle(ctx context.Context) error {
	limit := patience
	if w.cfg.Sabotage != "" { // the progress usually ends before everything is applied
		limit = 3 * w.cfg.Lease
	}
	var last progress
	since := time.Now()
	for {
		next := time.Now().Add(500 * time.Millisecond)
		for time.Now().Before(next) {
			if err := w.turn(ctx); err != nil {
				return err
			}
		}
		now, err := w.progress(ctx)
		switch {
		case err != nil:
			w.tally.errors["drain"]++
		case now.effects >= now.written && now.pending == 0:
			return nil
		}
		if now != last && err == nil {
			last, since = now, time.Now()
		}
		if time.Since(since) < limit {
			continue
		}
		if err != nil {
			return fmt.Errorf("soak: the database does not answer, so there is no verdict: %w", w.store.Clean(err))
		}
		w.view.line(fmt.Sprintf("no progress for %v: %d of %d events have an effect, %d are pending in the outbox, %d are dead letters", limit,
			now.effects, now.written, now.pending, now.dead))
		return nil
	}
}

// progress is how far the delivery is.
type progress struct{ written, effects, pending, dead int }

func (w *world) progress(ctx context.Context) (progress, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var p progress
	err := w.store.SQL.QueryRowContext(ctx, w.names.fill(`SELECT (SELECT count(*) FROM {outbox}) + (SELECT count(*) FROM {delayed}), (SELECT count(*) FROM {dead})`)).
		Scan(&p.pending, &p.dead)
	if err != nil || p.pending > 0 {
		p.effects = w.tally.distinct
		p.written = p.effects + p.pending
		return p, err
	}
	err = w.store.SQL.QueryRowContext(ctx, w.names.fill(`SELECT (SELECT count(*) FROM {ledger}), (SELECT count(*) FROM {effect})`)).Scan(&p.written, &p.effects)
	return p, err
}

// outage is a time in which a server did not answer.
type outage struct {
	Server string    `json:"server"`
	From   time.Time `json:"from"`
	// Seconds is how long it lasted.
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error"`

	open bool
}

// probed is the result of a probe.
type probed struct {
	server string
	at     time.Time
	err    error
}

// watch probes both servers, so that faults that the user injects are part of
// the report.
func (w *world) watch(ctx context.Context) {
	hosts := w.hosts()
	for ctx.Err() == nil {
		at := time.Now()
		limited, cancel := context.WithTimeout(ctx, 3*time.Second)
		var one int
		err := w.store.SQL.QueryRowContext(limited, "SELECT 1").Scan(&one)
		cancel()
		if ctx.Err() != nil {
			return
		}
		all := []probed{{"database", at, err}}
		for _, host := range hosts {
			at := time.Now()
			conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", host)
			if err == nil {
				_ = conn.Close()
			}
			all = append(all, probed{"broker " + host, at, err})
		}
		for _, p := range all {
			select {
			case w.probes <- p:
			case <-ctx.Done():
				return
			}
		}
		pause(ctx, time.Second)
	}
}

// hosts returns the addresses of the broker with their ports.
func (w *world) hosts() []string {
	u, hosts, err := settings.ParseURL(w.spec.Sink)
	if err != nil || w.nats != nil {
		return nil
	}
	port := map[string]string{"nats": "4222", "tls": "4222", "kafka": "9092", "amqp": "5672", "amqps": "5671", "redis": "6379", "rediss": "6379"}[u.Scheme]
	if u.Query().Has("sentinel") {
		port = "26379"
	}
	var out []string
	for host := range strings.SplitSeq(hosts, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, port)
		}
		out = append(out, host)
	}
	return out
}

// note adds a probe to the outages.
func (w *world) note(p probed) {
	var open *outage
	for _, o := range w.outages {
		if o.open && o.Server == p.server {
			open = o
		}
	}
	failed := p.err != nil
	switch {
	case failed && open == nil:
		w.outages = append(w.outages, &outage{Server: p.server, From: p.at, Error: w.clean.Clean(p.err.Error()), open: true})
	case open != nil:
		open.Seconds = time.Since(open.From).Seconds()
		open.open = failed
	}
}
