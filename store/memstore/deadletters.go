package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Replay implements [driver.DeadLetters].
func (t *tables) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out store.Replayed
	dead, err := t.replayable(ctx, ids)
	if err != nil {
		return out, fmt.Errorf("memstore: replay: %w", err)
	}
	now := clock()
	for _, r := range dead {
		k := keyOf(r.Event)
		if holder, taken := t.dedup[k]; r.Event.DedupKey != "" {
			if taken {
				out.Refused = append(out.Refused, store.Refusal{ID: r.ID, Holder: holder})
				continue
			}
			t.dedup[k] = r.ID
		}
		t.move(r, store.Delayed, func(next *record) {
			next.Attempts, next.Holds = 0, r.Event.Ordered()
			next.Replay++
			next.deferUntil(now)
		})
		out.IDs = append(out.IDs, r.ID)
	}
	return out, nil
}

// replayable returns the dead letters among ids, in the order of seq, once no
// open transaction has any of their keys; mu is held, but not during the wait.
func (t *tables) replayable(ctx context.Context, ids []waybill.ID) ([]*record, error) {
	for {
		dead := t.those(ids, func(r *record) bool { return r.state == store.Dead })
		var wait *txn
		for _, r := range dead {
			if x := t.reserved[keyOf(r.Event)]; x != nil && r.Event.DedupKey != "" {
				wait = x
			}
		}
		if wait == nil {
			return dead, nil
		}
		if err := t.await(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// those returns the matching records with these ids, in the order of seq; mu is
// held.
func (t *tables) those(ids []waybill.ID, meant func(*record) bool) []*record {
	var found []*record
	for _, id := range ids {
		if r := t.rows[id]; r != nil && meant(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, bySeq)
	return slices.Compact(found)
}

// Discard implements [driver.DeadLetters].
func (t *tables) Discard(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dead := t.those(ids, func(r *record) bool { return r.state == store.Dead })
	for _, r := range dead {
		t.remove(r)
		t.forgetUntil(r.CreatedAt)
	}
	return idsOf(dead), nil
}

// Unblock implements [driver.DeadLetters].
func (t *tables) Unblock(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.those(ids, func(r *record) bool { return r.Holds })
	for _, r := range held {
		r.Holds = false
		delete(t.holding, r.ID)
	}
	return idsOf(held), nil
}

func idsOf(rs []*record) []waybill.ID {
	var ids []waybill.ID
	for _, r := range rs {
		ids = append(ids, r.ID)
	}
	return ids
}
