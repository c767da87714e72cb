package admin

import (
	"context"
	"fmt"

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

// ReplayAll replays the dead letters that match a filter, oldest first, in
// batches, up to the last one that existed at the start. It calls progress, if
// not nil, after every batch. If it fails, the count is the number of replayed
// events.
func (d *Outbox) ReplayAll(ctx context.Context, f store.Filter, progress func(Progress)) (Replayed, error) {
	var out Replayed
	ctx = audited(ctx, "replay", d.destination, filterTarget(f))
	err := d.each(ctx, f, progress, func(ids []waybill.ID) error {
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

// DiscardAll discards the dead letters that match a filter, in batches, up to
// the last one that existed at the start.
func (d *Outbox) DiscardAll(ctx context.Context, f store.Filter, progress func(Progress)) ([]waybill.ID, error) {
	var out []waybill.ID
	ctx = audited(ctx, "discard", d.destination, filterTarget(f))
	err := d.each(ctx, f, progress, func(ids []waybill.ID) error {
		gone, err := d.Discard(ctx, ids...)
		out = append(out, gone...)
		return err
	})
	return out, err
}

// each calls fn with the ids of dead letters that match a filter, batch by
// batch, up to the last one that existed at the start: an event that dies again
// meanwhile must not be processed twice.
func (d *Outbox) each(ctx context.Context, f store.Filter, progress func(Progress), fn func([]waybill.ID) error) error {
	total, err := d.Count(ctx, store.Dead, f)
	if err != nil {
		return err
	}
	list := func(after int64, n int) (Page, error) { return d.List(ctx, store.Dead, f, after, n) }
	return d.batches(ctx, list, total, progress, fn)
}

// batches calls fn with the ids of at most total dead letters, batch by batch.
// No id comes twice.
func (d *Outbox) batches(
	ctx context.Context, list func(after int64, n int) (Page, error), total int64, progress func(Progress), fn func([]waybill.ID) error,
) error {
	p := Progress{Total: total}
	seen := make(map[waybill.ID]bool)
	for after := int64(0); p.Done < total; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("admin: stopped after %d of %d dead letters: %w", p.Done, total, context.Cause(ctx))
		}
		page, err := list(after, d.cfg.BatchSize)
		if err != nil {
			return err
		}
		ids := unseen(page.Records, seen)
		if ids = ids[:min(int64(len(ids)), total-p.Done)]; len(ids) > 0 {
			if err := fn(ids); err != nil {
				return err
			}
			p.Done += int64(len(ids))
			if progress != nil {
				progress(p)
			}
		}
		if page.Next == 0 {
			return nil
		}
		after = page.Next
	}
	return nil
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
