package relay

import (
	"errors"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// gate decides whether a call that has waited for its turn at a destination may
// still begin: the lane may have been released meanwhile, and another node may
// own it; or the destination was paused. The engine sets it, and workers read
// it.
type gate struct {
	mu     sync.Mutex
	epochs map[int]int64 // lane → epoch, of the lanes whose deliveries may begin
	paused bool
}

// errNotCalled is the result of an event that was not passed to its destination
// although it was its turn.
var errNotCalled = errors.New("relay: the destination was paused, or the lane was released")

func isNotCalled(err error) bool { return err == errNotCalled } //nolint:errorlint // no sink returns it

func (g *gate) open(lease driver.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epochs == nil {
		g.epochs = make(map[int]int64)
	}
	g.epochs[lease.Lane] = lease.Epoch
}

func (g *gate) close(lane int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.epochs, lane)
}

func (g *gate) pause(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = on
}

// refused returns errNotCalled for the events that must not be passed to the
// destination any more, and nil for the others; no results if there are none.
func (g *gate) refused(batch []waybill.Delivery) []error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var refused []error
	for i := range batch {
		epoch, open := g.epochs[batch[i].Position.Lane]
		if open && epoch == batch[i].Position.Epoch && !g.paused {
			continue
		}
		if refused == nil {
			refused = make([]error, len(batch))
		}
		refused[i] = errNotCalled
	}
	return refused
}
