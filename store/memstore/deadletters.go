package memstore

import (
	"context"
	"fmt"

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
		t.revive(r, now)
		out.IDs = append(out.IDs, r.ID)
	}
	t.note(ctx, len(out.IDs))
	return out, nil
}

// replayable returns the dead letters among ids, in the order of seq, once no
// open transaction has any of their keys; mu is held, but not during the wait.
func (t *tables) replayable(ctx context.Context, ids []waybill.ID) ([]*record, error) {
	for {
		dead := t.dead(ids)
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

// Discard implements [driver.DeadLetters].
func (t *tables) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dead := t.dead(ids)
	for _, r := range dead {
		t.remove(r)
		t.forgetUntil(r.CreatedAt)
	}
	t.note(ctx, len(dead))
	return idsOf(dead), nil
}

// Unblock implements [driver.DeadLetters].
func (t *tables) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	done := t.unblock(ids)
	t.note(ctx, len(done))
	return done, nil
}

func idsOf(rs []*record) []waybill.ID {
	var ids []waybill.ID
	for _, r := range rs {
		ids = append(ids, r.ID)
	}
	return ids
}
