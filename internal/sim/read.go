package sim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The reads of the server: those of the memstore with other seqs and times,
// without the rows that are not committed yet.

// cursors returns cursors of the memstore, and how many more rows to read for
// the hidden ones. Mu is not held.
func (s *server) cursors(from []driver.Cursor) (in []driver.Cursor, more int) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	in = slices.Clone(from)
	for i := range in {
		in[i].After = s.inner(in[i].After)
		if in[i].UpTo > 0 {
			in[i].UpTo = max(s.inner(in[i].UpTo), 0)
			if in[i].UpTo == 0 {
				in[i].UpTo, in[i].After = 1, 1 // nothing
			}
		}
		more = max(more, s.hiddenOf(in[i].Lane))
	}
	return in, more
}

func (s *server) hiddenOf(lane int) int {
	if lane < 0 || lane >= len(s.hiddenIn) {
		return 0
	}
	return s.hiddenIn[lane]
}

// page returns what the product sees of a page, at most limit rows per lane.
func (s *server) page(p driver.Page, limit int, perLane bool) driver.Page {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	count := make(map[int]int)
	p.Rows = slices.DeleteFunc(p.Rows, func(r store.Row) bool {
		if _, hidden := s.hidden[r.ID]; hidden {
			return true
		}
		lane := 0
		if perLane {
			lane = r.Lane
		}
		count[lane]++
		return count[lane] > limit
	})
	s.outerPage(&p)
	return p
}

// outerPage gives the rows of a page the seqs and times that the product sees.
// Mu is held.
func (s *server) outerPage(p *driver.Page) {
	p.Now = p.Now.Add(s.offset)
	if !p.Next.IsZero() {
		p.Next = p.Next.Add(s.offset)
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		r.Seq = s.outer(r.Seq)
		r.CreatedAt = r.CreatedAt.Add(s.offset)
		if !r.DueAt.IsZero() {
			r.DueAt = r.DueAt.Add(s.offset)
			r.Event.AvailableAt = r.DueAt
		}
	}
}

func (s *server) fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	in, more := s.cursors(from)
	p, err := s.base.Fetch(ctx, in, limit+more)
	return s.page(p, limit, true), err
}

func (s *server) sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	in, more := s.cursors(from)
	refs, err := s.base.Sweep(ctx, in, limit+more)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	count := make(map[int]int)
	refs = slices.DeleteFunc(refs, func(r driver.RowRef) bool {
		if _, hidden := s.hidden[r.ID]; hidden {
			return true
		}
		count[r.Lane]++
		return count[r.Lane] > limit
	})
	for i := range refs {
		refs[i].Seq = s.outer(refs[i].Seq)
	}
	return refs, err
}

func (s *server) load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	p, err := s.base.Load(ctx, keys)
	return s.page(p, len(keys), false), err
}

func (s *server) due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	s.w.mu.Lock()
	more := 0
	for _, l := range lanes {
		more += s.hiddenOf(l)
	}
	var soon time.Time // the first row that a settlement will defer
	for _, a := range s.async {
		for _, r := range a.ofOutbox().Retry {
			if at := a.at.Add(r.Delay); slices.Contains(lanes, r.Lane) && (soon.IsZero() || at.Before(soon)) {
				soon = at
			}
		}
	}
	s.w.mu.Unlock()
	p, err := s.base.Due(ctx, lanes, limit+more)
	if !soon.IsZero() && (p.Next.IsZero() || soon.Before(p.Next)) {
		p.Next = soon.UTC()
	}
	return s.page(p, limit, false), err
}

func (s *server) holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	holds, err := s.base.Holds(ctx, lanes)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	holds = slices.DeleteFunc(holds, func(h driver.Hold) bool {
		_, hidden := s.hidden[h.ID]
		return hidden
	})
	for i := range holds {
		holds[i].Seq = s.outer(holds[i].Seq)
	}
	if more := s.asyncHolds(lanes); len(more) > 0 {
		holds = append(holds, more...)
		slices.SortFunc(holds, func(a, b driver.Hold) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq)) })
	}
	return holds, err
}

func (s *server) fetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	in, more := s.cursors([]driver.Cursor{from})
	p, err := s.base.FetchAggregate(ctx, agg, in[0], limit+more)
	return s.page(p, limit, true), err
}

func (s *server) fetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	in, more := s.cursors(from)
	p, err := s.base.FetchPriority(ctx, in, limit+more)
	return s.page(p, limit, true), err
}

// committed answers for transactions that a memstore does not know.
func (s *server) committed(ctx context.Context, id waybill.ID) (bool, error) {
	s.w.mu.Lock()
	_, hidden := s.hidden[id]
	doubt := s.inDoubt[id]
	ev := s.w.byID[id]
	s.w.mu.Unlock()
	switch {
	case doubt, ev != nil && ev.state == written:
		return false, waybill.ErrUncertain
	case hidden && ev != nil && ev.state == rolledBack:
		return false, nil
	}
	return s.base.Committed(ctx, id)
}
