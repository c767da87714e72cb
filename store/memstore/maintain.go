package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
)

// Purge implements [driver.Maintainer].
func (t *tables) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if state != store.Delivered && state != store.Dead {
		return 0, fmt.Errorf("memstore: purge: state %v cannot be purged", state)
	}
	if age < 0 {
		return 0, fmt.Errorf("memstore: purge: negative age %v", age)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	cutoff := clock().Add(-age)
	s := &t.buried
	if state == store.Delivered {
		s = &t.history
	}
	n := t.purge(s, cutoff, limit)
	if n > 0 {
		t.forgetUntil(cutoff)
	}
	t.note(ctx, n)
	return n, nil
}

// forgetUntil records that events written up to last may have left no trace; mu
// is held.
func (t *tables) forgetUntil(last time.Time) {
	if up := last.Truncate(time.Second); up.Before(last) {
		last = up.Add(time.Second)
	}
	// Texts in this format sort like the times; "never" sorts after all of
	// them, and the empty text before.
	t.reaches = max(t.reaches, last.UTC().Format(time.RFC3339))
}

// PurgeWritten implements [driver.Maintainer].
func (t *tables) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("memstore: purge: negative age %v", age)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.relayLive() {
		return 0, fmt.Errorf("memstore: purge: %w", store.ErrRelayLive)
	}
	now := clock()
	cutoff := now.Add(-age)
	var old []*record
	for _, r := range t.rows {
		if r.state == store.Ready && r.taker == nil && r.CreatedAt.Before(cutoff) && r.DueAt.Before(cutoff) {
			old = append(old, r)
		}
	}
	slices.SortFunc(old, func(a, b *record) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), bySeq(a, b)) })
	old = old[:min(max(limit, 0), len(old))]
	for _, r := range old {
		t.deliver(r, false, now) // leaves no trace
	}
	t.note(ctx, len(old))
	return len(old), nil
}

// MakeReady implements [driver.Maintainer].
func (t *tables) MakeReady(_ context.Context, limit int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.relayLive() {
		return 0, fmt.Errorf("memstore: make ready: %w", store.ErrRelayLive)
	}
	now := clock()
	var due []*record
	for _, r := range t.rows {
		if r.state == store.Delayed && r.taker == nil && !r.DueAt.After(now) {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *record) int { return cmp.Or(a.DueAt.Compare(b.DueAt), bySeq(a, b)) })
	due = due[:min(max(limit, 0), len(due))]
	for _, r := range due {
		t.move(r, store.Ready, func(next *record) {
			next.deferUntil(r.DueAt)
			next.Attempts, next.Replay, next.Holds, next.LastError = 0, 0, false, ""
		})
	}
	return len(due), nil
}

// relayLive reports whether any relay is running; mu is held.
func (t *tables) relayLive() bool {
	now := time.Now()
	for id := range t.nodes {
		if t.liveAt(id, now) {
			return true
		}
	}
	return false
}

// Tidy implements [driver.Maintainer].
func (t *tables) Tidy(context.Context, time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for id := range t.nodes {
		if !t.liveAt(id, now) {
			delete(t.nodes, id)
		}
	}
	return nil
}

// SetLanes implements [driver.Maintainer].
func (t *tables) SetLanes(ctx context.Context, n int) error {
	if n < 1 || n > maxLanes {
		return fmt.Errorf("memstore: lanes: %d is not between 1 and %d", n, maxLanes)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.still(ctx); err != nil {
		return fmt.Errorf("memstore: lanes: %w", err)
	}
	// All lanes start above the highest epoch of any lane: a lane that is
	// removed now and added later must not reuse an epoch. Rows of one lane's
	// owner may now be in any lane.
	var next lane
	for _, l := range t.lanes {
		next.epoch, next.window = max(next.epoch, l.epoch+1), max(next.window, l.window)
		next.dirty = next.dirty || l.dirty || !l.owner.IsZero()
	}
	t.lanes = slices.Repeat([]lane{next}, n)
	t.relane(n)
	for _, d := range t.destinations {
		if d != nil {
			d.relane(n)
		}
	}
	t.note(ctx, 1)
	return nil
}

// still returns once no relay is live and no open transaction has written or
// recorded anything: such transactions know lanes that will change; mu is held,
// but not during the wait.
func (t *tables) still(ctx context.Context) error {
	for {
		if t.relayLive() {
			return store.ErrRelayLive
		}
		open := t.sharer(func(int, *lane) bool { return true })
		for _, x := range t.writing {
			open = x
		}
		if open == nil {
			return nil
		}
		if err := t.await(ctx, open); err != nil {
			return err
		}
	}
}
