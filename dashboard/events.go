package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// stateRows is the maximum number of rows per state in a search through all
// states.
const stateRows = 20

// states are the states of a search, in the order of their display. Failed and
// scheduled events are the two kinds of delayed ones.
var states = []struct {
	Name, Title string
	state       store.State
	set         func(f *store.Filter)
}{
	{"ready", "Ready", store.Ready, func(*store.Filter) {}},
	{"failed", "Failed, to be retried", store.Delayed, func(f *store.Filter) { f.Failed = true }},
	{"scheduled", "Scheduled", store.Delayed, func(f *store.Filter) { f.Untried = true }},
	{"dead", "Dead", store.Dead, func(*store.Filter) {}},
	{"delivered", "Delivered", store.Delivered, func(*store.Filter) {}},
}

// eventsView is the data of the search.
type eventsView struct {
	selection
	State  string
	States []choice
	Places []place
	Found  []section
}

type choice struct {
	Name, Title string
	Current     bool
}

// Any reports whether an event was found, or may be found further back.
func (v *eventsView) Any() bool {
	return slices.ContainsFunc(v.Found, func(s section) bool { return len(s.Records) > 0 || !s.Searched.IsZero() })
}

// section are events in one state.
type section struct {
	Name, Title string
	Records     []store.Record
	// Next is the position of the next page; empty on the last page. More means
	// that there are more, which need a choice of the state.
	Next string
	More bool
	// Newest: the newest event is the first, and not the oldest.
	Newest bool
	// Searched is the time that the search of a filter reached, if it ended
	// before it found all events of the page. Next continues it.
	Searched time.Time
}

// toEvent leads to the page of an event whose id was typed.
func toEvent(text string) error {
	id, err := waybill.ParseID(strings.ToUpper(text))
	if err != nil {
		return refuse(http.StatusBadRequest, "This is not the id of an event. Ids have 26 letters and digits, such as 01JZ3V8Q5R7M2N4P6S8T0W1X3Y.")
	}
	return &redirect{"events/" + id.String()}
}

func (d *Dashboard) events(p *page) (any, error) {
	p.Title = "Events"
	if text := p.query("id"); text != "" {
		return nil, toEvent(text)
	}
	chosen, err := selectionOf(p.query, p.Now)
	if err != nil {
		return nil, err
	}
	v := &eventsView{selection: chosen, State: p.query("state")}
	rows, err := d.rows(p.ctx, v.Destination)
	if err != nil {
		return nil, err
	}
	if v.Places, err = d.places(p.ctx, v.Destination); err != nil {
		return nil, err
	}
	after := p.query("after")
	known := v.State == ""
	for _, one := range states {
		if one.state == store.Delivered && v.Destination != "" {
			continue // a backlog has no delivered rows
		}
		v.States = append(v.States, choice{one.Name, one.Title, one.Name == v.State})
		known = known || one.Name == v.State
		if v.State != "" && one.Name != v.State {
			continue
		}
		f, limit := v.Filter, pageRows
		one.set(&f)
		if v.State == "" {
			after, limit = "", stateRows
		}
		s := section{Name: one.Name, Title: one.Title, Newest: one.state == store.Delivered && rows.ListsRecent()}
		if err := s.read(p.ctx, rows, one.state, f, after, limit, d.searchRows); err != nil {
			return nil, err
		}
		v.add(s)
	}
	if !known {
		return nil, refuse(http.StatusBadRequest, "The state must be ready, failed, scheduled, dead or delivered.")
	}
	return v, nil
}

// add adds a section. Beside others it has no next page, except that a search
// continues.
func (v *eventsView) add(s section) {
	if v.State == "" && s.Searched.IsZero() {
		s.More, s.Next = s.Next != "", ""
	}
	v.Found = append(v.Found, s)
}

// read reads the events of the section after a position. A search of delivered
// events ends after scan events.
func (s *section) read(ctx context.Context, rows *admin.Outbox, state store.State, f store.Filter, after string, limit, scan int) error {
	if !s.Newest {
		from, err := position(after)
		if err != nil {
			return err
		}
		list, err := rows.List(ctx, state, f, from, limit)
		if s.Records = list.Records; list.Next != 0 {
			s.Next = strconv.FormatInt(list.Next, 10)
		}
		return err
	}
	before := newestBefore(f.Until)
	if after != "" {
		var err error
		if before, err = waybill.ParseID(after); err != nil {
			return refuse(http.StatusBadRequest, "The position of the page is not the id of an event.")
		}
	}
	list, err := rows.ListRecent(ctx, f, before, limit, scan)
	if s.Records = list.Records; !list.Next.IsZero() {
		s.Next = list.Next.String()
	}
	if list.Partial {
		s.Searched = list.Next.Time()
	}
	return err
}

// lateIDs is how much later than its delivery the id of an event may be: the
// clocks of writers and of the database differ.
const lateIDs = time.Hour

// newestBefore returns an id that is higher than those of events that were
// delivered before a time; zero without a time.
func newestBefore(until time.Time) waybill.ID {
	if until.IsZero() {
		return waybill.ID{}
	}
	var id waybill.ID
	ms := until.Add(lateIDs).UnixMilli()
	for i := 5; i >= 0; i-- { // the first six bytes of an id are its time
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

// position reads the position of a page.
func position(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, refuse(http.StatusBadRequest, "The position of the page is not a number.")
	}
	return n, nil
}

// blockedView is the data of the page of blocked aggregates.
type blockedView struct {
	Destination string
	Places      []place
	Blocked     []blockedRow
	Bounded     bool
}

type blockedRow struct {
	store.Aggregate
	By      store.Record
	Waiting int64
}

func (d *Dashboard) blocked(p *page) (any, error) {
	p.Title = "Blocked aggregates"
	v := &blockedView{Destination: p.query("destination")}
	rows, err := d.rows(p.ctx, v.Destination)
	if err != nil {
		return nil, err
	}
	if v.Places, err = d.places(p.ctx, v.Destination); err != nil {
		return nil, err
	}
	all, err := rows.Blocked(p.ctx, pageRows)
	if err != nil {
		return nil, err
	}
	v.Bounded = len(all) == pageRows
	for _, b := range all {
		b.By.Event.Payload = nil
		v.Blocked = append(v.Blocked, blockedRow{b.Aggregate, b.By, b.Waiting})
	}
	return v, nil
}

// destinationsView is the data of the page of destinations.
type destinationsView struct {
	*snapshot
	Rows []destinationRow
}

type destinationRow struct {
	bar
	// State is paused, down, limited, failing, behind or ok, and LastError that
	// of the first event that waits for a retry.
	State     string
	LastError string
	// Reports are what relay nodes report about the destination.
	Reports []string
}

func (d *Dashboard) destinations(p *page) (any, error) {
	p.Title = "Destinations"
	s, err := d.snapshot(p.ctx)
	if err != nil {
		return nil, err
	}
	v := &destinationsView{snapshot: s}
	for _, b := range s.Bars() {
		row, err := d.destinationRow(p.ctx, b)
		if err != nil {
			return nil, err
		}
		v.Rows = append(v.Rows, row)
	}
	return v, nil
}

func (d *Dashboard) destinationRow(ctx context.Context, b bar) (destinationRow, error) {
	row := destinationRow{bar: b, State: "ok", Reports: sentences(b.Troubles)}
	isDown := slices.ContainsFunc(b.Troubles, func(t admin.Trouble) bool { return t.State == admin.TroubleDown })
	if b.Destination.Failed > 0 {
		rows, err := d.cfg.Destinations.Outbox(ctx, b.Name)
		if err != nil {
			return row, err
		}
		if row.LastError, err = lastError(ctx, rows); err != nil {
			return row, err
		}
	}
	switch {
	case b.IsPaused():
		row.State = "paused"
	case isDown:
		row.State = "down"
	case len(b.Troubles) > 0:
		row.State = "limited"
	case b.Failed > 0:
		row.State = "failing"
	case b.Behind > 0:
		row.State = "behind"
	}
	return row, nil
}
