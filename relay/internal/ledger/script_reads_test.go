package ledger

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// event is an event that a command mentions.
type event struct {
	store.Row
	dead  bool
	waits bool
}

var (
	firstMention = regexp.MustCompile(`^(\d+)(?:\.\.(\d+))?:([a-z]+)(\d*)(?:/([a-z]+))?$`)
	nextMention  = regexp.MustCompile(`^([a-z]+)(\d+)(?:\.\.[a-z]+(\d+))?$`)
)

// events returns the events of the words of a command.
func (s *script) events(words []string) ([]event, error) {
	var out []event
	for _, word := range words {
		parts := strings.Split(word, ",")
		names, err := s.mentioned(parts[0])
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			e := event{Row: s.rows[name]}
			if err := s.setOptions(&e, parts[1:]); err != nil {
				return nil, err
			}
			if strings.Contains(parts[0], ":") {
				s.rows[name] = e.Row
			}
			out = append(out, e)
		}
	}
	return out, nil
}

// mentioned returns the names of the events of a word.
func (s *script) mentioned(word string) ([]string, error) {
	if m := firstMention.FindStringSubmatch(word); m != nil {
		from, _ := strconv.Atoi(m[1])
		to := from
		if m[2] != "" {
			to, _ = strconv.Atoi(m[2])
		}
		var names []string
		for seq := from; seq <= to; seq++ {
			name := m[3] + m[4]
			if m[2] != "" {
				name = m[3] + strconv.Itoa(seq)
			}
			s.describe(name, int64(seq), m[5])
			names = append(names, name)
		}
		return names, nil
	}
	m := nextMention.FindStringSubmatch(word)
	if m == nil {
		return nil, fmt.Errorf("%s is not an event", word)
	}
	from, _ := strconv.Atoi(m[2])
	to := from
	if m[3] != "" {
		to, _ = strconv.Atoi(m[3])
	}
	var names []string
	for n := from; n <= to; n++ {
		name := m[1] + strconv.Itoa(n)
		if _, known := s.rows[name]; !known {
			return nil, fmt.Errorf("%s has no seq yet", name)
		}
		names = append(names, name)
	}
	return names, nil
}

// mentionedAll returns the names of the events of several words.
func (s *script) mentionedAll(words []string) (names []string, err error) {
	for _, w := range words {
		some, err := s.mentioned(w)
		if err != nil {
			return nil, err
		}
		names = append(names, some...)
	}
	return names, nil
}

// describe notes the row of an event that is mentioned first.
func (s *script) describe(name string, seq int64, aggregate string) {
	row := store.Row{Key: store.Key{Lane: 1, Seq: seq}, CreatedAt: s.dbNow()}
	n := len(s.names) + 1
	row.ID[14], row.ID[15] = byte(n>>8), byte(n)
	row.Event = waybill.Event{ID: row.ID, Type: "Tested"}
	if aggregate != "" {
		row.Event.AggregateType, row.Event.AggregateID = "thing", aggregate
	}
	s.rows[name], s.names[row.ID] = row, name
}

func (s *script) setOptions(e *event, opts []string) error {
	for _, o := range opts {
		key, value, _ := strings.Cut(o, "=")
		n, err := strconv.Atoi(value)
		d, notTime := time.ParseDuration(value)
		switch key {
		case "lane":
			e.Lane = n
		case "kb":
			e.Event.Payload = make([]byte, n<<10)
		case "priority":
			e.Event.Priority = n
		case "attempts":
			e.Attempts = n
		case "replay":
			e.Replay = n
		case "tenant":
			e.Event.TenantID, err = value, nil
		case "to":
			e.Event.Topic, err = value, nil
		case "holds":
			e.Holds, err = true, nil
		case "dead":
			e.dead, err = true, nil
		case "waits":
			e.waits, err = true, nil
		case "broken":
			e.Err, err = errors.New("a broken row"), nil
		case "due":
			e.DueAt, err = s.dbNow().Add(d), notTime
		case "at":
			e.Event.AvailableAt, err = s.dbNow().Add(d), notTime
		case "delay":
			e.Event.Delay, err = d, notTime
		case "age":
			e.CreatedAt, err = s.dbNow().Add(-d), notTime
		default:
			return fmt.Errorf("there is no option %s", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kindOf returns the kind of read with a name.
func kindOf(name string) (ReadKind, error) {
	for i := range readKinds {
		k := ReadKind(i)
		if k.String() == name {
			return k, nil
		}
	}
	return 0, fmt.Errorf("there is no read %s", name)
}

func (s *script) due([]string) error {
	var kinds []string
	for k := range s.g.DueReads(s.now) {
		kinds = append(kinds, k.String())
	}
	if len(kinds) == 0 {
		kinds = []string{"none"}
	}
	slices.Sort(kinds)
	s.print("due: %s", strings.Join(kinds, " "))
	return nil
}

func (s *script) startRead(args []string) error {
	if len(args) == 0 {
		return errors.New("of which kind?")
	}
	k, err := kindOf(args[0])
	if err != nil {
		return err
	}
	if !slices.Contains(slices.Collect(s.g.DueReads(s.now)), k) {
		if w := s.g.wish(k); w.wanted && w.at.After(s.now) {
			s.print("read %s: due in %v", k, w.at.Sub(s.now))
		} else {
			s.print("read %s: not wanted", k)
		}
		return nil
	}
	r, ok := s.g.StartRead(k, s.now)
	if !ok {
		s.print("read %s: nothing to read", k)
		return nil
	}
	s.reading = &r
	s.printRead(&r)
	return nil
}

// read starts a read and answers it.
func (s *script) read(args []string) error {
	if err := s.startRead(args); err != nil || s.reading == nil {
		if _, wrong := s.events(eventsOf(args[min(1, len(args)):])); err == nil {
			err = wrong
		}
		return err
	}
	return s.answer(args[1:])
}

// eventsOf returns the words of an answer that are events.
func eventsOf(words []string) []string {
	rest, _ := options(words, "check", "unknown")
	return rest
}

func (s *script) fail([]string) error {
	if s.reading == nil {
		return errors.New("no read is under way")
	}
	r := *s.reading
	s.reading = nil
	s.g.ReadFailed(r, s.now)
	return nil
}

func (s *script) shrink([]string) error {
	if s.reading == nil {
		return errors.New("no read is under way")
	}
	if !s.reading.Shrink() {
		s.print("the read cannot be smaller")
		return nil
	}
	s.printRead(s.reading)
	return nil
}

func (s *script) answer(args []string) error {
	if s.reading == nil {
		return errors.New("no read is under way")
	}
	r := s.reading
	words, checked := args, []string(nil)
	if at := slices.Index(args, "check"); at >= 0 {
		words, checked = args[:at], args[at+1:]
	}
	rest, opts := options(words, "unknown")
	events, err := s.events(rest)
	if err != nil {
		return err
	}
	behind, err := s.events(eventsOf(checked))
	if err != nil {
		return err
	}
	took, _ := time.ParseDuration(opts["took"])
	a := Answer{Took: took}
	if r.Kind != ReadHolds && r.Kind != ReadSweep && r.Kind != ReadWriters {
		a.Page.Now = s.dbNow()
	}
	if next, err := time.ParseDuration(opts["next"]); err == nil {
		a.Page.Next = s.dbNow().Add(next)
	}
	if r.Verify {
		a.Writers = writersOf(opts)
	}
	s.fill(&a, r, events, behind)
	s.reading = nil
	s.g.RowsRead(*r, a, s.now)
	return nil
}

// writersOf returns the open transactions of an answer.
func writersOf(opts map[string]string) *driver.WriterState {
	high, _ := strconv.ParseInt(opts["high"], 10, 64)
	w := &driver.WriterState{HighSeq: high, Issued: high, Unknown: opts["unknown"] != ""}
	if issued, err := strconv.ParseInt(opts["issued"], 10, 64); err == nil {
		w.Issued = issued
	}
	if opts["open"] != "" {
		w.Open = strings.Split(opts["open"], ",")
	}
	return w
}

// fill completes an answer with the rows that are in the range of the read, and
// prints their names.
func (s *script) fill(a *Answer, r *Read, events, behind []event) {
	slices.SortStableFunc(events, func(x, y event) int {
		if x.Lane != y.Lane {
			return x.Lane - y.Lane
		}
		return int(x.Seq - y.Seq)
	})
	var returned []string
	perLane := make(map[int]int)
	if r.Kind == ReadUrgent {
		a.Page.Plain = r.plain(events)
	}
	if r.Kind == ReadOthers {
		s.fillOthers(a, r, events)
		return
	}
	for i := range events {
		e := &events[i]
		ref := driver.RowRef{Key: e.Key, Aggregate: driver.AggregateOf(&e.Event)}
		if !r.covers(e) || r.Kind == ReadUrgent && e.waits || r.Limit > 0 && perLane[e.Lane] >= r.Limit {
			continue
		}
		perLane[e.Lane]++
		returned = append(returned, s.name(e.ID))
		switch {
		case r.Kind == ReadHolds:
			a.Holds = append(a.Holds, driver.Hold{Key: e.Key, Aggregate: ref.Aggregate, Dead: e.dead})
			continue
		case r.Kind == ReadSweep:
			a.Refs = append(a.Refs, ref)
			continue
		case r.Skip != nil:
			a.Refs = append(a.Refs, ref)
			if _, skip := r.Skip[ref.Aggregate]; skip {
				continue
			}
		}
		a.Page.Rows = append(a.Page.Rows, e.Row)
	}
	for i := range behind {
		e := &behind[i]
		if slices.ContainsFunc(r.Check, func(c driver.Cursor) bool { return inRange(c, e) }) {
			a.Refs = append(a.Refs, driver.RowRef{Key: e.Key, Aggregate: driver.AggregateOf(&e.Event)})
			returned = append(returned, s.name(e.ID))
		}
	}
	if r.Kind != ReadWriters {
		s.print("  returns %s", list(returned))
	}
}

// fillOthers completes the answer of a read of others.
func (s *script) fillOthers(a *Answer, r *Read, events []event) {
	var returned []string
	perLane := make(map[int]int)
	for i := range events {
		e := &events[i]
		if !r.covers(e) || perLane[e.Lane] >= r.Limit {
			continue
		}
		perLane[e.Lane]++
		a.Refs = append(a.Refs, driver.RowRef{Key: e.Key, Aggregate: driver.AggregateOf(&e.Event), Tenant: e.Event.TenantID})
	}
	var keys []store.Key
	a.Refs, keys = r.Others(a.Refs)
	for i := range events {
		if slices.Contains(keys, events[i].Key) {
			returned = append(returned, s.name(events[i].ID))
			a.Page.Rows = append(a.Page.Rows, events[i].Row)
		}
	}
	s.print("  looks at %d rows, returns %s", len(a.Refs), list(returned))
}

// plain returns the lanes of a read of urgent rows that have none.
func (r *Read) plain(events []event) []int {
	return slices.DeleteFunc(slices.Clone(r.Lanes), func(lane int) bool {
		return slices.ContainsFunc(events, func(e event) bool { return e.Lane == lane && r.covers(&e) })
	})
}

// covers reports whether a row is in the range of a read.
func (r *Read) covers(e *event) bool {
	switch r.Kind {
	case ReadHolds, ReadDue:
		return slices.Contains(r.Lanes, e.Lane)
	case ReadLoad:
		return slices.ContainsFunc(r.Keys, func(k store.Key) bool { return k.ID == e.ID })
	case ReadWriters:
		return false
	case ReadFollow:
		if driver.AggregateOf(&e.Event) != r.Aggregate {
			return false
		}
	case ReadUrgent:
		if e.Event.Priority == 0 {
			return false
		}
	case ReadFast, ReadSweep, ReadOthers:
	}
	return slices.ContainsFunc(r.Cursors, func(c driver.Cursor) bool { return inRange(c, e) })
}

func inRange(c driver.Cursor, e *event) bool {
	return c.Lane == e.Lane && e.Seq > c.After && (c.UpTo == 0 || e.Seq <= c.UpTo)
}
