package sqlstore

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Sink is the record of the sink of an outbox. Each function is one statement
// that commits on its own.
type Sink struct {
	// Store is the name of the store, the first word of its errors.
	Store string
	// Read returns the recorded sink, or "".
	Read func() (string, error)
	// First records the sink if none is recorded.
	First func(sink string) error
	// Replace replaces the recorded sink before, unless another node is live.
	Replace func(sink, before string) error
}

// Claim records a sink and returns the sink that was recorded before. If
// another sink is recorded, Claim replaces it only with takeOver, and returns
// an error if that fails.
func (s Sink) Claim(sink string, takeOver bool) (string, error) {
	before, err := s.Read()
	if err != nil || before == sink {
		return before, err
	}
	if before == "" {
		if err := s.First(sink); err != nil {
			return "", err
		}
	} else if takeOver {
		if err := s.Replace(sink, before); err != nil {
			return before, err
		}
	}
	// Another relay may have recorded its sink first.
	now, err := s.Read()
	switch {
	case err != nil || now == sink:
		return before, err
	case takeOver && before != "":
		return now, fmt.Errorf("%s: %w: the relay delivers to %q", s.Store, store.ErrRelayLive, now)
	}
	return now, fmt.Errorf("%s: %w: %q", s.Store, waybill.ErrOtherSink, now)
}
