package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// GroupProgress tells how far a consumer group has come.
type GroupProgress struct {
	Group string
	// LastApplied is the time at which the group applied an event last, by the
	// database's clock; zero if no record of such an event is kept.
	LastApplied time.Time
	// Rate is the number of events per second that the group applied in the
	// last minute, or from the first of its last hundred events until now if
	// that is less.
	Rate float64
	// Lag is the time between the newest event that the group applied and the
	// newest delivered event of the same types, by the times of their ids; 0 if
	// the group has applied the newest one. LagKnown reports whether the lag is
	// known: the newest delivered events are in the history of the same
	// database, and have a type of the last hundred events of the group.
	Lag      time.Duration
	LagKnown bool
}

const (
	// appliedRows is the number of records from which the progress of a group
	// is computed, and newestRows the number of delivered events.
	appliedRows = 100
	newestRows  = 50
	// rateSpan is the longest time over which a rate is computed.
	rateSpan = time.Minute
)

// Progress returns how far consumer groups have come, in the order of the
// names. It reads a hundred records of each, by an index, and returns nil for a
// store without such an index.
//
// Tables of an inbox do not have the filters of a group, events that it has
// yet to receive, or events of another database: an event of a type that the
// group has not applied lately is no part of its lag.
func (g *Inbox) Progress(ctx context.Context, groups ...string) ([]GroupProgress, error) {
	db, ok := g.db.(driver.Applied)
	if !ok || len(groups) == 0 {
		return nil, nil
	}
	newest, err := g.newestOfTypes(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: newest events: %w", err)
	}
	out := make([]GroupProgress, len(groups))
	for i, name := range groups {
		records, err := db.ListApplied(ctx, name, appliedRows)
		if err != nil {
			return nil, fmt.Errorf("admin: applied events: %w", err)
		}
		out[i] = progressOf(name, records, newest)
	}
	return out, nil
}

// newestOfTypes returns the newest time of the ids of delivered events, by
// type, as far as the newest of all events tell.
func (g *Inbox) newestOfTypes(ctx context.Context) (map[string]time.Time, error) {
	recent, ok := g.outbox.(driver.Recent)
	if !ok {
		return nil, nil
	}
	found, _, err := recent.ListRecent(ctx, store.Filter{}, waybill.ID{}, newestRows, newestRows)
	if err != nil {
		return nil, err
	}
	newest := make(map[string]time.Time)
	for _, r := range found {
		if at := r.Event.ID.Time(); at.After(newest[r.Event.Type]) {
			newest[r.Event.Type] = at
		}
	}
	return newest, nil
}

// progressOf computes the progress of a group from its last records, the last
// one first.
func progressOf(name string, records []store.InboxRecord, newest map[string]time.Time) GroupProgress {
	p := GroupProgress{Group: name}
	if len(records) == 0 {
		return p
	}
	now := records[0].Now
	p.LastApplied = records[0].ProcessedAt
	lately, span := 0, rateSpan
	var applied, behind time.Time
	for _, r := range records {
		if now.Sub(r.ProcessedAt) < rateSpan {
			lately++
		}
		if at := r.Event.Time(); at.After(applied) {
			applied = at
		}
		if at := newest[r.Type]; at.After(behind) {
			behind = at
		}
	}
	if lately == appliedRows {
		span = max(now.Sub(records[len(records)-1].ProcessedAt), time.Millisecond)
	}
	p.Rate = float64(lately) / span.Seconds()
	if p.LagKnown = !behind.IsZero(); p.LagKnown {
		p.Lag = max(behind.Sub(applied), 0)
	}
	return p
}
