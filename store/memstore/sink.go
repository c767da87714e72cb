package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// ClaimSink implements [driver.SinkGuard].
func (t *tables) ClaimSink(_ context.Context, n store.Node, sink string, takeOver bool) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.sink
	if before != "" && before != sink {
		if !takeOver {
			return before, fmt.Errorf("memstore: %w: %q", waybill.ErrOtherSink, before)
		}
		now := time.Now()
		for id := range t.nodes {
			if id != n.ID && t.liveAt(id, now) {
				return before, fmt.Errorf("memstore: %w: recorded sink %q", store.ErrRelayLive, before)
			}
		}
	}
	t.sink = sink
	return before, nil
}

// RecordedSink implements [driver.SinkGuard].
func (t *tables) RecordedSink(context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sink, nil
}
