package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// ReplayOptions are the options of [Destinations.Replay]. The zero value is
// valid.
type ReplayOptions struct {
	// Limit is the maximum number of events to replay. Defaults to 0: no limit.
	Limit int64
	// Rate is the maximum number of replayed events per second. Defaults to 0:
	// no limit.
	Rate float64
	// After continues a replay that has reached its limit: it is Next of that
	// replay. The query must be the same, with HistoryReplay.Until as its
	// Until. Defaults to the beginning.
	After driver.HistoryCursor
	// Progress is called after every batch. Defaults to no function.
	Progress func(HistoryReplay)
}

// HistoryReplay is the progress, and the result, of a replay of delivered
// events.
type HistoryReplay struct {
	// Matched is the number of events that matched so far, and Replayed the
	// number of those that were put into the backlog: the others were there
	// already.
	Matched, Replayed int64
	// Until is the end of the replay: events that were delivered later are not
	// replayed.
	Until time.Time
	// Next is the place in the history at which the replay ended. More means
	// that it ended there because of its limit.
	Next driver.HistoryCursor
	More bool
}

// Replay delivers events of the history to a destination again: those that
// match a query and that were delivered before the replay began. It copies them
// into the destination's backlog, in batches; the relay delivers them from
// there, with the same id and with Delivery.Replay > 0, in the order in which
// they were written and before newer events of their aggregates. Events that
// are in the backlog are skipped. The relay applies the filter of the
// destination when it delivers them.
//
// While the destination is paused, a repeated replay adds only events that an
// earlier one did not find. If Replay fails, its result is valid.
func (s *Destinations) Replay(ctx context.Context, name string, q driver.HistoryQuery, o ReplayOptions) (HistoryReplay, error) {
	p := o.pace()
	if err := p.check(); err != nil {
		return HistoryReplay{}, err
	}
	rows, q, err := s.history(ctx, name, q)
	if err != nil {
		return HistoryReplay{}, err
	}
	out := HistoryReplay{Until: q.Until, Next: o.After}
	ctx = audited(ctx, "replay_history", name, historyTarget(q))
	for {
		began := time.Now()
		limit := p.batch(s.cfg.BatchSize, out.Replayed)
		r, err := rows.Refill(ctx, q, out.Next, limit)
		if err != nil {
			return out, fmt.Errorf("admin: replaying to destination %q: %w", name, err)
		}
		out.Matched, out.Replayed, out.Next = out.Matched+int64(r.Matched), out.Replayed+int64(r.Copied), r.Next
		s.outbox.wake(r.Copied)
		last := r.Matched < limit
		out.More = !last && o.Limit > 0 && out.Replayed >= o.Limit
		if o.Progress != nil {
			o.Progress(out)
		}
		if last || out.More {
			return out, nil
		}
		if err := p.wait(ctx, began, r.Copied); err != nil {
			return out, fmt.Errorf("admin: stopped after %d replayed events: %w", out.Replayed, err)
		}
	}
}

// CountHistory returns the number of delivered events that a replay would find.
// Those that are in the backlog of the destination already are counted, too.
func (s *Destinations) CountHistory(ctx context.Context, name string, q driver.HistoryQuery) (int64, error) {
	rows, q, err := s.history(ctx, name, q)
	if err != nil {
		return 0, err
	}
	n, err := rows.CountHistory(ctx, q)
	if err != nil {
		return 0, fmt.Errorf("admin: counting delivered events: %w", err)
	}
	return n, nil
}

// history returns the backlog of a destination, and a query that ends now at
// the latest: events that are replayed and delivered again have a later
// delivery time, and must not match again.
func (s *Destinations) history(ctx context.Context, name string, q driver.HistoryQuery) (driver.Backlog, driver.HistoryQuery, error) {
	if !q.Until.IsZero() && !q.Since.Before(q.Until) {
		return nil, q, fmt.Errorf("%w: HistoryQuery.Since, %s, is not before Until, %s", ErrInvalid, utc(q.Since), utc(q.Until))
	}
	d, err := s.find(ctx, name)
	if err != nil {
		return nil, q, err
	}
	rows := s.db.Backlog(d.Number)
	stats, err := rows.Stats(ctx) // the database's clock
	if err != nil {
		return nil, q, fmt.Errorf("admin: destination %q: %w", name, err)
	}
	if q.Since.After(stats.Now) {
		return nil, q, fmt.Errorf("%w: HistoryQuery.Since, %s, is in the future: the database's clock is at %s", ErrInvalid, utc(q.Since), utc(stats.Now))
	}
	if q.Until.IsZero() || q.Until.After(stats.Now) {
		q.Until = stats.Now
	}
	return rows, q, nil
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// pace returns the bounds of the replay.
func (o ReplayOptions) pace() pace { return pace{"ReplayOptions", o.Limit, o.Rate} }
