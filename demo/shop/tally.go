package shop

import (
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/observe"
)

// tally counts events that no table records: failed attempts, and suppressed
// repeats.
type tally struct {
	requests  atomic.Int64 // of customers
	asked     atomic.Int64 // repeated requests of customers
	relay     atomic.Int64 // failed deliveries, which are retried
	inventory atomic.Int64 // failed attempts of the inventory, which are retried
	byKey     atomic.Int64 // requests with the answer of an earlier one
	byInbox   atomic.Int64 // messages of already applied events
}

// watch updates the tally from hooks.
func (t *tally) watch(h observe.Hooks) observe.Hooks {
	failed, consumed, notConsumed, repeated := or(h.Failed), or(h.Consumed), or(h.ConsumeFailed), or(h.KeyRepeated)
	h.Failed = func(info observe.FailedInfo) {
		t.relay.Add(1)
		failed(info)
	}
	h.Consumed = func(info observe.ConsumedInfo) {
		if info.Replayed {
			t.byInbox.Add(1)
		}
		consumed(info)
	}
	h.ConsumeFailed = func(info observe.ConsumeFailedInfo) {
		t.inventory.Add(1)
		notConsumed(info)
	}
	h.KeyRepeated = func(info observe.KeyRepeatedInfo) {
		t.byKey.Add(1)
		repeated(info)
	}
	return h
}

// numbers is the tally at one moment, for the view.
type numbers struct {
	After                                                     time.Duration
	Requests, Asked, Relay, Inventory, ByKey, ByInbox, Faults int64
	Kinds                                                     [faultCount]int
	Last                                                      string
	BrokerUp, Closed                                          bool
}

func (w *world) numbers() numbers {
	n := numbers{
		After: time.Since(w.faults.began), Requests: w.tally.requests.Load(), Asked: w.tally.asked.Load(),
		Relay: w.tally.relay.Load(), Inventory: w.tally.inventory.Load(), ByKey: w.tally.byKey.Load(), ByInbox: w.tally.byInbox.Load(),
		BrokerUp: w.line.Up(), Closed: w.courier.closed.Load(),
	}
	n.Kinds, n.Last = w.faults.so()
	for _, count := range n.Kinds {
		n.Faults += int64(count)
	}
	return n
}
