package memstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Stats implements [driver.Inspector].
func (t *tables) Stats(context.Context) (store.Stats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats()
	s.Membership = t.membership(time.Now())
	for i := range s.Nodes {
		n := t.nodes[s.Nodes[i].ID]
		s.Nodes[i].Report, s.Nodes[i].Expires = n.report, n.expires.UTC().Truncate(time.Microsecond)
	}
	return s, nil
}

// Members implements [driver.Members].
func (t *tables) Members(ctx context.Context) (store.Stats, error) {
	s, err := t.Stats(ctx)
	return store.Stats{Now: s.Now, Membership: s.Membership}, err
}

// stats counts the rows; ready rows count as rows without an attempt.
func (s *rowSet) stats() store.Stats {
	out := store.Stats{Now: clock(), Ready: s.count[store.Ready], Dead: s.count[store.Dead], Holding: int64(len(s.holding))}
	for i := range s.queues {
		q := &s.queues[i]
		for r := range q.ready.all {
			if out.Oldest.IsZero() || r.CreatedAt.Before(out.Oldest) {
				out.Oldest = r.CreatedAt
			}
			break
		}
		for r := range q.delayed {
			if r.Attempts > 0 {
				out.Failed++
			}
			out.MaxAttempts = max(out.MaxAttempts, r.Attempts)
		}
	}
	out.Scheduled = s.count[store.Delayed] - out.Failed
	return out
}

// Count implements [driver.Inspector].
func (v reads) Count(_ context.Context, state store.State, f store.Filter) (int64, error) {
	s := v.lock()
	defer v.mu.Unlock()
	found, err := s.choose(state, f, 0)
	return int64(len(found)), err
}

// List implements [driver.Inspector].
func (v reads) List(_ context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	s := v.lock()
	defer v.mu.Unlock()
	found, err := s.choose(state, f, after)
	slices.SortFunc(found, bySeq)
	return copyRecords(found[:min(max(limit, 0), len(found))]), err
}

// ListRecent implements [driver.Recent].
func (v reads) ListRecent(_ context.Context, f store.Filter, before waybill.ID, limit, scan int) ([]store.Record, waybill.ID, error) {
	s := v.lock()
	defer v.mu.Unlock()
	found, err := s.choose(store.Delivered, store.Filter{}, 0)
	found = slices.DeleteFunc(found, func(r *record) bool { return !before.IsZero() && bytes.Compare(r.ID[:], before[:]) >= 0 })
	slices.SortFunc(found, func(a, b *record) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	var floor waybill.ID
	if scan > 0 && len(found) >= scan {
		found = found[:scan]
		floor = found[scan-1].ID
	}
	found = slices.DeleteFunc(found, func(r *record) bool { return !fits(r, f) })
	return copyRecords(found[:min(max(limit, 0), len(found))]), floor, err
}

// Find implements [driver.Inspector].
func (v reads) Find(_ context.Context, id waybill.ID) ([]store.Record, error) {
	s := v.lock()
	defer v.mu.Unlock()
	if r := s.rows[id]; r != nil {
		return copyRecords([]*record{r}), nil
	}
	return nil, nil
}

func copyRecords(rs []*record) []store.Record {
	var out []store.Record
	for _, r := range rs {
		out = append(out, store.Record{Row: copyRow(r), State: r.state, EndedAt: r.ended})
	}
	return out
}

// choose returns the records in a state that match the filter and come after a
// seq, in any order.
func (s *rowSet) choose(state store.State, f store.Filter, after int64) ([]*record, error) {
	var found []*record
	look := func(r *record) bool {
		if r.Seq > after && fits(r, f) {
			found = append(found, r)
		}
		return true
	}
	switch state {
	case store.Ready:
		for i := range s.queues {
			s.queues[i].ready.all(look)
		}
	case store.Delayed:
		for i := range s.queues {
			s.queues[i].delayed(look)
		}
	case store.Dead:
		s.buried.all(look)
	case store.Delivered:
		s.history.all(look)
	default:
		return nil, fmt.Errorf("memstore: unknown state %v", state)
	}
	return found, nil
}

func fits(r *record, f store.Filter) bool {
	if f.NoTenant {
		f.TenantID = ""
	}
	f.Failed = f.Failed && !f.Untried
	same := func(want, got string) bool { return want == "" || want == got }
	ev := &r.Event
	return same(f.Type, ev.Type) && same(f.AggregateType, ev.AggregateType) && same(f.AggregateID, ev.AggregateID) &&
		same(f.TenantID, ev.TenantID) && (!f.Holding || r.Holds) && (!f.Failed || r.Attempts > 0) &&
		(!f.NoTenant || ev.TenantID == "") && (!f.Untried || r.Attempts == 0) && same(f.CorrelationID, ev.CorrelationID) &&
		same(f.Cause, r.cause) && fitsEnd(r, f)
}

// fitsEnd reports whether the time and the error of a record match a filter.
func fitsEnd(r *record, f store.Filter) bool {
	at := r.CreatedAt
	if r.state == store.Dead || r.state == store.Delivered {
		at = r.ended
	}
	return !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until)) &&
		(f.Error == "" || r.state != store.Delivered && strings.Contains(r.LastError, f.Error))
}
