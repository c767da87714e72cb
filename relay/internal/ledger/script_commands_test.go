package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// scriptHelp describes the commands of a script.
//
// An event is written as seq:name/aggregate when it is mentioned first,
// seq:name without an aggregate, and name after that; 1..9:n/a is the events n1
// to n9. Options follow, separated by commas: lane=2, to=mail (its
// destination), tenant=north, priority=5, attempts=1, replay=1, holds, dead,
// waits (a read of urgent rows omits it), broken (its row cannot be decoded),
// kb=9 (the size of its payload), due=5s, at=30m and delay=5s (of an
// announcement), age=2s.
const scriptHelp = `
config OPTIONS      settings of the ledger, before all other commands: batch,
                    cold, hot, attempts, window, sweep, block, ordered, backlog,
                    kb=64 for MaxBytes, and clock=1h for a node whose clock is an hour
                    fast
begin LANES         acquire lanes, read no holds and no open transactions
acquire LANES       options unclean and window=4
lose LANE           another node owns the lane
drain LANE          the lane is to be released
stop                the relay stops
lanes               what the engine sees of the lanes
advance DURATION    the time passes
due                 the kinds of reads that are due
start KIND          begin a read, if it is due
answer EVENTS       the store's answer to the read: of these rows, those in the
                    range of the read. Then check EVENTS: the rows that a check
                    lists. Options took=5ms, next=5s, and for the open
                    transactions high=9, issued=9, open=x1,x2 and unknown
read KIND EVENTS    start and answer
fail                the read fails
shrink              the page of the read is too large
write EVENTS        describe events, which the ledger does not see yet
copying EVENT       the outbox is about to copy the event to this backlog
copied EVENTS       the outbox has copied them
announce EVENTS     a commit of this process; options unchecked, began=-1s
wake                a commit without events
deliver [LIMIT]     the next deliveries: a suspect, and a batch
result EVENT WHAT   ok, retry, permanent, unavailable, later or settled
undelivered EVENT   the delivery did not happen
settle              the next settlement
settled             the answer to it; options lost=1 and gone=e1
unsettled           the settlement fails
distrust            a call to the database has failed
state               lanes, aggregates and events in memory
`

// script runs the commands of a script.
type script struct {
	mayTake  int64 // the first event that will be copied to this backlog; 0: none
	g        *Ledger
	now      time.Time
	clock    time.Duration // the node's clock minus the database's
	rows     map[string]store.Row
	names    map[waybill.ID]string
	inMemory map[string]bool
	inFlight map[string]*Item
	reading  *Read
	settling *Settlement
	counts   Counts
	batch    []string // the events of the last batch, in their order
	lines    []string
}

func newScript(t *testing.T) *script {
	t.Helper()
	return &script{
		now: time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC),
		g: New(Config{
			BatchSize: 10, HotQueue: 10, ColdQueue: 100, MaxAttempts: 3, PollInterval: 2 * time.Second, SweepInterval: time.Second,
			Backoff:     func(n int) time.Duration { return 100 * time.Millisecond << n },
			Destination: func(ev *waybill.Event) string { return ev.Topic },
		}),
		rows: make(map[string]store.Row), names: make(map[waybill.ID]string), inMemory: make(map[string]bool), inFlight: make(map[string]*Item),
	}
}

// run runs one command.
func (s *script) run(words []string) error {
	name, args := words[0], words[1:]
	commands := map[string]func([]string) error{
		"config": s.config, "begin": s.begin, "acquire": s.acquire, "lose": s.lose, "drain": s.drain, "stop": s.stop, "lanes": s.lanes,
		"advance": s.advance, "due": s.due, "start": s.startRead, "answer": s.answer, "read": s.read, "fail": s.fail, "shrink": s.shrink,
		"write": s.write, "announce": s.announce, "copying": s.copying, "copied": s.copied, "wake": s.wake, "deliver": s.deliver, "result": s.result, "undelivered": s.undelivered,
		"settle": s.settle, "settled": s.settled, "unsettled": s.unsettled, "distrust": s.distrust, "state": s.state,
	}
	command := commands[name]
	if command == nil {
		return errors.New("there is no such command:" + scriptHelp)
	}
	if err := command(args); err != nil {
		return err
	}
	s.printFacts()
	s.printCounts()
	s.printMemory()
	return nil
}

// options splits the words that have the form key=value, or that are in flags,
// from the others.
func options(args []string, flags ...string) (rest []string, opts map[string]string) {
	opts = make(map[string]string)
	for _, a := range args {
		key, value, ok := strings.Cut(a, "=")
		switch {
		case ok && !strings.Contains(key, ","):
			opts[key] = value
		case slices.Contains(flags, a):
			opts[a] = "yes"
		default:
			rest = append(rest, a)
		}
	}
	return rest, opts
}

func (s *script) config(args []string) error {
	_, opts := options(args, "block", "ordered", "backlog")
	for key, value := range opts {
		n, err := strconv.Atoi(value)
		d, notTime := time.ParseDuration(value)
		switch key {
		case "batch":
			s.g.cfg.BatchSize = n
		case "cold":
			s.g.cfg.ColdQueue = n
		case "hot":
			s.g.cfg.HotQueue = n
		case "kb":
			s.g.cfg.MaxBytes = n << 10
		case "attempts":
			s.g.cfg.MaxAttempts = n
		case "window":
			s.g.window = n
		case "block":
			s.g.cfg.Block, err = true, nil
		case "ordered":
			s.g.cfg.Ordered, err = true, nil
		case "backlog":
			s.g.cfg.Backlog, err = true, nil
			s.g.cfg.MayTake = func(int) int64 { return cmp.Or(s.mayTake, math.MaxInt64) }
		case "sweep":
			s.g.cfg.SweepInterval, err = d, notTime
		case "clock":
			s.clock, err = d, notTime
		default:
			return fmt.Errorf("there is no setting %s", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin acquires lanes and answers the reads that come first.
func (s *script) begin(args []string) error {
	for _, words := range [][]string{append([]string{"acquire"}, args...), {"read", "holds"}, {"read", "writers", "high=0"}} {
		if err := s.run(words); err != nil {
			return err
		}
	}
	s.lines = nil
	s.print("acquired: %s; nothing is held, no transaction is open", strings.Join(args, " "))
	return nil
}

func (s *script) acquire(args []string) error {
	rest, opts := options(args, "unclean")
	window, _ := strconv.Atoi(opts["window"])
	lanes, err := numbers(rest)
	for _, n := range lanes {
		s.g.LaneAcquired(driver.Lease{Lane: n, Epoch: 1, Unclean: opts["unclean"] != "", Window: window}, nil, s.now)
	}
	return err
}

func numbers(words []string) (out []int, err error) {
	for _, w := range words {
		n, err := strconv.Atoi(w)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

func (s *script) lose(args []string) error {
	lanes, err := numbers(args)
	for _, n := range lanes {
		s.g.LaneLost(n, s.now)
	}
	return err
}

func (s *script) drain(args []string) error {
	lanes, err := numbers(args)
	for _, n := range lanes {
		s.g.DrainLane(n, s.now.Add(5*time.Second), s.now)
	}
	return err
}

func (s *script) stop([]string) error {
	s.g.Stop(s.now)
	for _, l := range s.g.Lanes() {
		s.g.DrainLane(l.Lease.Lane, s.now.Add(5*time.Second), s.now)
	}
	return nil
}

func (s *script) advance(args []string) error {
	d, err := time.ParseDuration(strings.Join(args, ""))
	s.now = s.now.Add(d)
	s.g.Probe(s.now)
	return err
}

// dbNow returns the time by the database's clock.
func (s *script) dbNow() time.Time { return s.now.Add(-s.clock) }

func (s *script) announce(args []string) error {
	rest, opts := options(args, "unchecked")
	began, _ := time.ParseDuration(opts["began"])
	c := driver.Commit{Checked: opts["unchecked"] == "", BeganAt: s.now.Add(began)}
	events, err := s.events(rest)
	if err != nil {
		return err
	}
	for _, e := range events {
		c.Entries = append(c.Entries, driver.Entry{Event: e.Event, Lane: e.Lane})
	}
	s.g.Announced([]driver.Commit{c}, s.now)
	s.printAnnounced(events)
	return nil
}

// copying sets the first event that the outbox is about to copy.
func (s *script) copying(args []string) error {
	events, err := s.events(args)
	if err == nil && len(events) == 1 {
		s.mayTake = events[0].Seq
	}
	return err
}

// copied reports events that the outbox has copied.
func (s *script) copied(args []string) error {
	events, err := s.events(args)
	s.mayTake = 0
	for _, e := range events {
		s.g.Appended(e.Lane, e.Seq, s.now)
	}
	return err
}

func (s *script) write(args []string) error {
	_, err := s.events(args)
	return err
}

func (s *script) wake([]string) error {
	s.g.Announced([]driver.Commit{{}}, s.now)
	return nil
}

func (s *script) deliver(args []string) error {
	limit := s.g.cfg.BatchSize
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		limit = n
	}
	s.g.CountSuspects(s.now)
	all := s.g.NextSuspects(nil, limit, s.now)
	batch := s.g.NextBatch(nil, limit, s.now)
	s.batch = nil
	for _, it := range batch {
		s.batch = append(s.batch, s.name(it.id()))
	}
	all = append(all, batch...)
	for _, it := range all {
		s.inFlight[s.name(it.id())] = it
	}
	s.printDeliveries(all)
	return nil
}

func (s *script) result(args []string) error {
	results := map[string]error{
		"ok": nil, "retry": errors.New("refused"), "permanent": waybill.Permanent(errors.New("rejected")),
		"unavailable": waybill.Unavailable(errors.New("not reached")), "later": waybill.Later(5*time.Second, errors.New("not now")),
		"settled": waybill.ErrSettled,
	}
	what := args[len(args)-1]
	err, known := results[what]
	if !known {
		return errors.New("there is no such result")
	}
	names, wrong := s.mentionedAll(args[:len(args)-1])
	if wrong != nil {
		return wrong
	}
	for _, name := range names {
		it := s.inFlight[name]
		if it == nil {
			return fmt.Errorf("%s is not in flight", name)
		}
		delete(s.inFlight, name)
		d := it.Delivery()
		if v := s.g.DeliveryEnded(it, &d, err, s.now); v.Ignored {
			s.print("the result of %s is ignored", name)
		}
	}
	return nil
}

func (s *script) undelivered(args []string) error {
	names, err := s.mentionedAll(args)
	if err != nil {
		return err
	}
	for _, name := range names {
		it := s.inFlight[name]
		if it == nil {
			return fmt.Errorf("%s is not in flight", name)
		}
		delete(s.inFlight, name)
		s.g.Undelivered(it, s.now)
	}
	return nil
}

func (s *script) settle([]string) error {
	st, ok := s.g.NextSettlement(s.now)
	if !ok {
		s.print("nothing is settled now")
		return nil
	}
	s.settling = &st
	s.printSettlement(&st)
	return nil
}

func (s *script) settled(args []string) error {
	if s.settling == nil {
		return errors.New("no settlement is under way")
	}
	_, opts := options(args)
	var answer driver.Settled
	for _, l := range s.settling.Leases {
		if !slices.Contains(strings.Split(opts["lost"], ","), strconv.Itoa(l.Lane)) {
			answer.Held = append(answer.Held, l.Lane)
		}
	}
	for _, o := range s.settling.outcomes {
		if !slices.Contains(strings.Split(opts["gone"], ","), s.name(o.it.id())) {
			answer.Moved = append(answer.Moved, o.it.id())
		}
	}
	st := *s.settling
	s.settling = nil
	s.g.Settled(st, answer, 0, s.now)
	return nil
}

func (s *script) unsettled([]string) error {
	if s.settling == nil {
		return errors.New("no settlement is under way")
	}
	st := *s.settling
	s.settling = nil
	s.g.SettlementFailed(st, s.now)
	return nil
}

func (s *script) distrust([]string) error {
	s.g.Distrust(s.now)
	return nil
}
