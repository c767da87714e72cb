package shop

import (
	"context"
	"net/http"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// Line carries the events from the relay to the inventory.
type Line interface {
	// Words returns the texts of the screen.
	Words() Words
	// Open starts the line. The relay and the inventory start afterwards.
	Open(ctx context.Context, site Site) error
	// Sink returns the relay's destination.
	Sink() waybill.Sink
	// Inventory runs the inventory until ctx ends. It then ends like a crashed
	// process, in the middle of its work, and can run again.
	Inventory(ctx context.Context) error
	// Stop interrupts the line, and Start repairs it.
	Stop()
	Start(ctx context.Context) error
	// Up reports whether the line is open and not interrupted.
	Up() bool
	// InFlight returns the number of events between the relay and the
	// inventory.
	InFlight(ctx context.Context) (int, error)
	// Close ends the line after the relay and the inventory have ended.
	Close() error
}

// Words are the texts that describe a line on the screen.
type Words struct {
	// Destination is the name of the relay's destination, Label the name of the
	// line in the picture, Parts the sentence about the parts of the shop.
	Destination, Label, Parts string
	// AckLost, Stop, Crash and DeadAfter describe faults: an event was
	// delivered, and the relay is not told; the line was interrupted; the
	// inventory ended before its commit; it ended after its commit.
	AckLost, Stop, Crash, DeadAfter string
}

// Site is the shop as a line sees it.
type Site struct {
	// Dir is the folder of the shop's files.
	Dir string
	// Hooks count what the line observes.
	Hooks observe.Hooks
	// Consumer returns an inventory that runs in this process.
	Consumer func() (waybill.Sink, error)

	// moment is what an inventory in another process asks and reports.
	moment func(ctx context.Context, what moment) answer
}

// moment is a moment of an inventory.
type moment string

// The moments.
const (
	written   moment = "written"   // an event was applied in a transaction that is open
	committed moment = "committed" // the transaction was committed, and the relay is not told yet
	replayed  moment = "replayed"  // the event had been applied before
	missed    moment = "missed"    // an attempt failed
)

// answer is what an inventory does after a moment.
type answer string

// The answers.
const (
	proceed answer = ""
	fails   answer = "fails"
	panics  answer = "panics"
	dies    answer = "dies" // for an inventory in this process: another one is killed
)

// Metrics observe the shop.
type Metrics interface {
	// Hooks returns the hooks for a part of the shop.
	Hooks() observe.Hooks
	// Handler serves the metrics.
	Handler() http.Handler
}

// noMetrics is the default.
type noMetrics struct{}

func (noMetrics) Hooks() observe.Hooks  { return observe.Hooks{} }
func (noMetrics) Handler() http.Handler { return http.NotFoundHandler() }

// or returns a hook that can be called.
func or[T any](hook func(T)) func(T) {
	if hook == nil {
		return func(T) {}
	}
	return hook
}
