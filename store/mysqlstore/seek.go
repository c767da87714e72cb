package mysqlstore

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// urgentReach is how many rows are looked at for each that is asked for.
const urgentReach = 10

// aggregate receives the columns that make one.
type aggregate struct{ tenant, kind, id []byte }

func (a *aggregate) decode() store.Aggregate {
	if len(a.id) == 0 {
		return store.Aggregate{}
	}
	return store.Aggregate{Tenant: string(a.tenant), Type: cmp.Or(string(a.kind), waybill.GlobalAggregate), ID: string(a.id)}
}

// Holds implements [store.Seeker].
func (s *Store) Holds(ctx context.Context, lanes []int) ([]store.Hold, error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	numbers := make([]string, len(lanes))
	for i, lane := range lanes {
		numbers[i] = strconv.Itoa(lane)
	}
	var holds []store.Hold
	var h store.Hold
	var id scanID
	var agg aggregate
	err := each(ctx, s.db, fill(s.sql.holds, "{numbers}", strings.Join(numbers, ", ")), nil, func() {
		h.ID, h.Aggregate = waybill.ID(id), agg.decode()
		holds = append(holds, h)
	}, &h.Lane, &h.Seq, &id, &agg.tenant, &agg.kind, &agg.id, &h.Dead)
	if err != nil {
		return nil, s.explain(err)
	}
	eventrow.Sort(holds, func(h *store.Hold) store.Key { return h.Key })
	return holds, nil
}

// Follow implements [store.Seeker]. It reads through the whole stretch, and leaves out what is not the aggregate's. Unordered events
// follow nothing.
func (s *Store) Follow(ctx context.Context, agg store.Aggregate, from store.Cursor, limit int) (store.Page, error) {
	if agg.IsZero() {
		return s.clock(ctx)
	}
	keys := perLane(s.sql.followKeys, []store.Cursor{from}, limit)
	p, err := s.page(ctx, fill(s.sql.fetch, "{keys}", keys), []byte(agg.ID), []byte(agg.Type), []byte(agg.Tenant))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}

// Urgent implements [store.Seeker]. There is no index for it: it looks at the next rows of each lane, ten times as many as are asked
// for.
func (s *Store) Urgent(ctx context.Context, from []store.Cursor, limit int) (store.Page, error) {
	if len(from) == 0 {
		return s.clock(ctx)
	}
	keys := perLane(fill(s.sql.urgentKeys, "{reach}", strconv.Itoa(urgentReach*max(limit, 0))), from, limit)
	p, err := s.page(ctx, fill(s.sql.fetch, "{keys}", keys))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}
