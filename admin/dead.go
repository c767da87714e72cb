package admin

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Progress is the progress of a long operation. Total was counted at its start.
type Progress struct {
	Done, Total int64
}

// Replayed is the result of a replay.
type Replayed struct {
	// IDs are the events that will be delivered again.
	IDs []waybill.ID
	// Refused are dead letters that stay dead, because a pending event has
	// their dedup key.
	Refused []store.Refusal
}

// Replay delivers dead letters again: same id, attempts from 0. An id that is
// no longer dead is skipped, so a repeated call replays once.
func (d *Outbox) Replay(ctx context.Context, ids ...waybill.ID) (Replayed, error) {
	var out Replayed
	ctx = audited(ctx, "replay", d.destination, idsTarget(ids))
	for len(ids) > 0 {
		n := min(len(ids), d.cfg.BatchSize)
		r, err := d.db.Replay(ctx, ids[:n])
		if err != nil {
			return out, fmt.Errorf("admin: replaying dead letters: %w", err)
		}
		ids = ids[n:]
		out.IDs, out.Refused = append(out.IDs, r.IDs...), append(out.Refused, r.Refused...)
		d.wake(len(r.IDs))
		if len(r.IDs) > 0 && d.cfg.Observe.Replayed != nil {
			d.cfg.Observe.Replayed(observe.ReplayedInfo{Events: len(r.IDs)})
		}
	}
	return out, nil
}

// DeadLetterOptions bound a change of the dead letters that match a filter. The
// zero value is valid.
type DeadLetterOptions struct {
	// Limit is the maximum number of dead letters, the oldest first. Defaults
	// to 0: all that existed at the start.
	Limit int64
	// Rate is the maximum number of dead letters per second. Defaults to 0: no
	// limit.
	Rate float64
	// Progress is called after every batch. Defaults to no function.
	Progress func(Progress)
}

// ReplayAll replays the dead letters that match a filter, oldest first, in
// batches, up to the last one that existed at the start. If it fails, its
// result has the replayed events.
func (d *Outbox) ReplayAll(ctx context.Context, f store.Filter, o DeadLetterOptions) (Replayed, error) {
	var out Replayed
	ctx = audited(ctx, "replay", d.destination, lettersTarget(f, o))
	err := d.each(ctx, f, o, func(ids []waybill.ID) error {
		r, err := d.Replay(ctx, ids...)
		out.IDs, out.Refused = append(out.IDs, r.IDs...), append(out.Refused, r.Refused...)
		return err
	})
	return out, err
}

// Discard deletes dead letters and returns the deleted ids; ids that are no
// longer dead are skipped.
func (d *Outbox) Discard(ctx context.Context, ids ...waybill.ID) ([]waybill.ID, error) {
	var out []waybill.ID
	ctx = audited(ctx, "discard", d.destination, idsTarget(ids))
	for len(ids) > 0 {
		n := min(len(ids), d.cfg.BatchSize)
		gone, err := d.db.Discard(ctx, ids[:n])
		if err != nil {
			return out, fmt.Errorf("admin: discarding dead letters: %w", err)
		}
		ids, out = ids[n:], append(out, gone...)
		d.wake(len(gone))
		if len(gone) > 0 && d.cfg.Observe.Discarded != nil {
			d.cfg.Observe.Discarded(observe.DiscardedInfo{Events: len(gone)})
		}
	}
	return out, nil
}

// DiscardAll discards the dead letters that match a filter, in the manner of
// [Outbox.ReplayAll].
func (d *Outbox) DiscardAll(ctx context.Context, f store.Filter, o DeadLetterOptions) ([]waybill.ID, error) {
	var out []waybill.ID
	ctx = audited(ctx, "discard", d.destination, lettersTarget(f, o))
	err := d.each(ctx, f, o, func(ids []waybill.ID) error {
		gone, err := d.Discard(ctx, ids...)
		out = append(out, gone...)
		return err
	})
	return out, err
}

// lettersTarget is the target of a change of the dead letters that match.
func lettersTarget(f store.Filter, o DeadLetterOptions) string {
	if o.Limit == 0 {
		return filterTarget(f)
	}
	return filterTarget(f) + " limit=" + strconv.FormatInt(o.Limit, 10)
}

// CountDeadLetters returns the number of dead letters that a change of those
// that match a filter would affect now.
func (d *Outbox) CountDeadLetters(ctx context.Context, f store.Filter, o DeadLetterOptions) (int64, error) {
	if err := o.pace().check(); err != nil {
		return 0, err
	}
	n, err := d.Count(ctx, store.Dead, f)
	if o.Limit > 0 {
		n = min(n, o.Limit)
	}
	return n, err
}

// pace returns the bounds of the change.
func (o DeadLetterOptions) pace() pace { return pace{"DeadLetterOptions", o.Limit, o.Rate} }

// each calls fn with the ids of dead letters that match a filter, batch by
// batch, up to the last one that existed at the start. No id comes twice: an
// event that dies again meanwhile must not be processed twice.
func (d *Outbox) each(ctx context.Context, f store.Filter, o DeadLetterOptions, fn func([]waybill.ID) error) error {
	total, err := d.CountDeadLetters(ctx, f, o)
	if err != nil {
		return err
	}
	pace, p := o.pace(), Progress{Total: total}
	seen := make(map[waybill.ID]bool)
	for after := int64(0); p.Done < total; {
		began := time.Now()
		if ctx.Err() != nil {
			return stopped(ctx, p)
		}
		page, err := d.List(ctx, store.Dead, f, after, pace.batch(d.cfg.BatchSize, p.Done))
		if err != nil {
			return err
		}
		ids := unseen(page.Records, seen)
		if ids = ids[:min(int64(len(ids)), total-p.Done)]; len(ids) > 0 {
			if err := fn(ids); err != nil {
				return err
			}
			p.Done += int64(len(ids))
			if o.Progress != nil {
				o.Progress(p)
			}
		}
		if page.Next == 0 || p.Done == total {
			return nil
		}
		if pace.wait(ctx, began, len(ids)) != nil {
			return stopped(ctx, p)
		}
		after = page.Next
	}
	return nil
}

// stopped is the error of a change that was stopped.
func stopped(ctx context.Context, p Progress) error {
	return fmt.Errorf("admin: stopped after %d of %d dead letters: %w", p.Done, p.Total, context.Cause(ctx))
}

// unseen returns the ids of the records that are not in seen, and adds them.
func unseen(records []store.Record, seen map[waybill.ID]bool) []waybill.ID {
	var ids []waybill.ID
	for _, r := range records {
		if !seen[r.ID] {
			seen[r.ID] = true
			ids = append(ids, r.ID)
		}
	}
	return ids
}
