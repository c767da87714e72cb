package memstore

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Restored implements [driver.Restorer].
func (t *tables) Restored(ctx context.Context, force bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := func(int, *lane) bool { return true }
	for {
		if !force && t.relayLive() {
			return fmt.Errorf("memstore: restored: %w", store.ErrRelayLive)
		}
		open := t.sharer(all)
		if open == nil {
			break
		}
		if err := t.await(ctx, open); err != nil {
			return fmt.Errorf("memstore: restored: %w", err)
		}
	}
	clear(t.nodes)
	t.free(all, true)
	for i := range t.lanes {
		t.lanes[i].epoch += driver.RestoreEpochs
	}
	t.seq += driver.RestoreSeqs
	t.note(ctx, 1)
	return nil
}
