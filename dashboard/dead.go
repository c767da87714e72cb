package dashboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// Limits of a scan of dead letters, which includes their payloads.
const (
	scanRows  = 5000
	scanBytes = 32 << 20
	// scanPage is the size of the first page of a scan, and largePage that of
	// the others if the dead letters are small.
	scanPage, largePage = 200, 2400
)

// causeGroup are the dead letters with one cause.
type causeGroup struct {
	// ID identifies the cause in addresses.
	ID    string
	Cause string
	// Types are the types of the first events, at most three, and MoreTypes the
	// number of the others.
	Types       []string
	MoreTypes   int
	Letters     int64
	First, Last time.Time
	// Example is the first event.
	Example store.Record

	types map[string]bool
}

// group groups dead letters by their causes, the largest group first.
func group(records []store.Record) []*causeGroup {
	known := make(map[string]*causeGroup)
	var out []*causeGroup
	for _, r := range records {
		text := admin.CauseText(r.LastError)
		g := known[text]
		if g == nil {
			g = &causeGroup{ID: admin.CauseOf(r.LastError), Cause: text, First: r.EndedAt, Last: r.EndedAt, Example: r, types: map[string]bool{}}
			known[text] = g
			out = append(out, g)
		}
		g.add(r)
	}
	slices.SortStableFunc(out, func(a, b *causeGroup) int { return cmp.Compare(b.Letters, a.Letters) })
	return out
}

// add counts a dead letter.
func (g *causeGroup) add(r store.Record) {
	g.Letters++
	if r.EndedAt.Before(g.First) {
		g.First = r.EndedAt
	}
	if r.EndedAt.After(g.Last) {
		g.Last = r.EndedAt
	}
	if g.types[r.Event.Type] {
		return
	}
	g.types[r.Event.Type] = true
	if len(g.Types) < 3 {
		g.Types = append(g.Types, r.Event.Type)
	} else {
		g.MoreTypes++
	}
}

// scan is the result of a bounded read of dead letters.
type scan struct {
	Records []store.Record
	// Bounded means that there may be more dead letters.
	Bounded bool
	// ByCause means that the records are only those with the selected cause:
	// the stored ones, and those among the oldest letters.
	ByCause bool
}

// scan reads dead letters without their payloads, at most scanRows, oldest
// first. If there are more, the oldest need not include those of the selected
// cause, which are read by their stored cause then.
func (s selection) scan(ctx context.Context, rows *admin.Outbox) (scan, error) {
	oldest, err := scanPages(ctx, rows, s.Filter)
	if err != nil || !oldest.Bounded || s.Cause == "" {
		return oldest, err
	}
	f := s.Filter
	f.Cause = s.Cause
	stored, err := scanPages(ctx, rows, f)
	switch {
	case errors.Is(err, admin.ErrNoCauses):
		return oldest, nil
	case err != nil:
		return stored, err
	}
	known := make(map[waybill.ID]bool)
	for _, r := range stored.Records {
		known[r.ID] = true
	}
	for _, r := range s.of(oldest.Records) {
		if !known[r.ID] { // without a stored cause yet
			stored.Records = append(stored.Records, r)
		}
	}
	slices.SortFunc(stored.Records, func(a, b store.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	stored.ByCause = true
	return stored, nil
}

// scanPages reads the dead letters that match a filter.
func scanPages(ctx context.Context, rows *admin.Outbox, f store.Filter) (scan, error) {
	var out scan
	bytes, size := 0, scanPage
	for after := int64(0); ; {
		page, err := rows.List(ctx, store.Dead, f, after, size)
		if err != nil {
			return out, err
		}
		for _, r := range page.Records {
			bytes += len(r.Event.Payload)
			r.Event.Payload = nil
			out.Records = append(out.Records, r)
		}
		if page.Next == 0 {
			return out, nil
		}
		if len(out.Records) >= scanRows || bytes >= scanBytes {
			out.Bounded = true
			return out, nil
		}
		// As many as have half of the remaining bytes, if they are like these.
		size = min(max((scanBytes-bytes)/2/(bytes/len(out.Records)+1), scanPage), largePage, scanRows-len(out.Records))
		after = page.Next
	}
}

// of returns the records of the selected cause, or all.
func (s selection) of(records []store.Record) []store.Record {
	if s.Cause == "" {
		return records
	}
	var out []store.Record
	for _, r := range records {
		if admin.CauseOf(r.LastError) == s.Cause {
			out = append(out, r)
		}
	}
	return out
}

// rows returns the outbox, or the backlog of a destination.
func (d *Dashboard) rows(ctx context.Context, destination string) (*admin.Outbox, error) {
	switch {
	case destination == "":
		return d.cfg.Outbox, nil
	case d.cfg.Destinations == nil:
		return nil, admin.ErrNoDestination
	}
	return d.cfg.Destinations.Outbox(ctx, destination)
}

// deadView is the data of the page of dead letters.
type deadView struct {
	selection
	// Places are the outbox and all destinations, with their numbers of dead
	// letters.
	Places  []place
	Groups  []*causeGroup
	Chosen  *causeGroup
	Letters []store.Record
	Next    string
	// Matching is the number of dead letters that match, or 0 if it is not
	// known. Scanned is the number of those that were read, and Bulk of those
	// that a change of all affects.
	Matching int64
	Scanned  int
	Bulk     int
	// Bounded means that there may be more than those that were read. Whole
	// means that the groups are of all dead letters, except Unknown ones.
	Bounded, Whole bool
	Unknown        int64
	// LastID is the newest letter that was read: a change of all letters ends
	// with it.
	LastID waybill.ID
}

type place struct {
	Name, Title string
	Dead        int64
	Current     bool
}

func (d *Dashboard) dead(p *page) (any, error) {
	p.Title = "Dead letters"
	chosen, err := selectionOf(p.query, p.Now)
	if err != nil {
		return nil, err
	}
	v := &deadView{selection: chosen}
	rows, err := d.rows(p.ctx, v.Destination)
	if err != nil {
		return nil, err
	}
	if v.Places, err = d.places(p.ctx, v.Destination); err != nil {
		return nil, err
	}
	found, err := v.scan(p.ctx, rows)
	if err != nil {
		return nil, err
	}
	v.Groups, v.Scanned, v.Bounded = group(found.Records), len(found.Records), found.Bounded
	v.choose()
	if (v.Bounded || found.ByCause) && v.Filter == (store.Filter{}) { // the groups are not of all letters
		if err := v.stored(p.ctx, rows); err != nil {
			return nil, err
		}
		v.choose()
	}
	letters := v.of(found.Records)
	v.Bulk = len(letters)
	switch {
	case !v.Bounded || v.Cause != "":
		v.Matching = int64(len(letters))
	case v.Filter == (store.Filter{}):
		v.Matching, err = d.deadAt(p.ctx, v.Destination)
	}
	if n := len(letters); n > 0 {
		v.LastID = letters[n-1].ID
	}
	v.Letters, v.Next = cut(letters, p.query("after"))
	return v, err
}

// deadAt returns the number of dead letters of the outbox, or of a destination,
// as the overview has it.
func (d *Dashboard) deadAt(ctx context.Context, destination string) (int64, error) {
	s, err := d.snapshot(ctx)
	if err != nil {
		return 0, err
	}
	if destination == "" {
		return s.Stats.Dead, nil
	}
	for _, to := range s.Destinations {
		if to.Name == destination {
			return to.Dead, nil
		}
	}
	return 0, nil
}

// choose sets the group of the selected cause, if it is known.
func (v *deadView) choose() {
	if v.Cause == "" {
		return
	}
	for _, g := range v.Groups {
		if g.ID == v.Cause {
			v.Chosen = g
		}
	}
}

// groupRows is the maximum number of causes of a page.
const groupRows = 100

// stored replaces the groups by those of the store, which are of all dead
// letters. It changes nothing: a page is only read.
func (v *deadView) stored(ctx context.Context, rows *admin.Outbox) error {
	found, err := rows.KnownCausesUpTo(ctx, groupRows, mostDead)
	if errors.Is(err, admin.ErrNoCauses) {
		return nil
	}
	if err != nil {
		return err
	}
	known, stored := make(map[string]*causeGroup), make(map[string]bool)
	for _, g := range v.Groups {
		known[g.ID] = g
	}
	v.Whole, v.Unknown = found.Unknown == 0, found.Unknown
	for _, c := range found.Groups {
		stored[c.ID] = true
	}
	// Letters without a cause yet are in the groups of the oldest ones.
	v.Groups = slices.DeleteFunc(v.Groups, func(g *causeGroup) bool { return v.Whole || stored[g.ID] })
	for _, c := range found.Groups {
		g := known[c.ID] // has all types
		if g == nil {
			g = &causeGroup{Types: []string{c.Example.Event.Type}}
		}
		g.ID, g.Cause, g.Letters, g.First, g.Last, g.Example = c.ID, c.Text, c.Letters, c.First, c.Last, c.Example
		v.Groups = append(v.Groups, g)
	}
	slices.SortStableFunc(v.Groups, func(a, b *causeGroup) int { return cmp.Compare(b.Letters, a.Letters) })
	return nil
}

// cut returns the page of records after an id, and the id that the next page
// begins after.
func cut(all []store.Record, after string) ([]store.Record, string) {
	if i := slices.IndexFunc(all, func(r store.Record) bool { return r.ID.String() == after }); i >= 0 {
		all = all[i+1:]
	}
	if len(all) > pageRows {
		return all[:pageRows], all[pageRows-1].ID.String()
	}
	return all, ""
}

// places returns the outbox and the destinations, with their dead letters.
func (d *Dashboard) places(ctx context.Context, current string) ([]place, error) {
	s, err := d.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	out := []place{{Title: "Outbox", Dead: s.Stats.Dead, Current: current == ""}}
	for _, to := range s.Destinations {
		out = append(out, place{Name: to.Name, Title: to.Name, Dead: to.Dead, Current: current == to.Name})
	}
	if len(out) == 1 {
		return nil, nil
	}
	return out, nil
}
