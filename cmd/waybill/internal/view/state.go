package view

import "github.com/waybillhq/waybill/store"

// The two kinds of delayed events in [Stats].
const (
	Scheduled = "scheduled"
	Failed    = "failed"
)

// ParseState parses the name of a state, or of a kind of delayed events, which
// it adds to the filter.
func ParseState(text string, f *store.Filter) (store.State, bool) {
	switch text {
	case Scheduled:
		f.Untried = true
		return store.Delayed, true
	case Failed:
		f.Failed = true
		return store.Delayed, true
	}
	for _, s := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		if s.String() == text {
			return s, true
		}
	}
	return 0, false
}
