package waybill

// Log collects the events that an aggregate raises until they are written.
// Embed Log in the aggregate, call Raise where something happens, and pass the
// aggregate to the outbox's Track inside the transaction: Track writes the
// events at commit and forgets them afterwards. A rollback leaves the events in
// the Log.
//
// A Log is not safe for concurrent use.
type Log struct {
	raised []Event
}

// Raise adds events. It assigns an id to an event without one, so that a second
// write after a failed commit writes the same event.
func (l *Log) Raise(evs ...Event) {
	for _, ev := range evs {
		if ev.ID.IsZero() {
			ev.ID = NewID()
		}
		l.raised = append(l.raised, ev)
	}
}

// Raised returns the events that were raised and not yet forgotten, oldest
// first. The caller owns the slice.
func (l *Log) Raised() []Event {
	return append([]Event(nil), l.raised...)
}

// ForgetRaised removes the n oldest events; the outbox calls it after they are
// committed.
func (l *Log) ForgetRaised(n int) {
	n = min(max(n, 0), len(l.raised))
	l.raised = append([]Event(nil), l.raised[n:]...)
}
