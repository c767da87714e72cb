package waybill

// Log collects the events that an aggregate raises, until they are written. Embed it in the aggregate, call Raise
// where something happens, and hand the aggregate to the outbox's Track inside the transaction: the events are written
// at commit and forgotten after it; a transaction that rolled back leaves them where they are.
//
// A Log belongs to its aggregate and is no more safe for concurrent use than that is.
type Log struct {
	raised []Event
}

// Raise adds events. One that has no id gets it now, so that writing it again after a failed commit writes the same
// event.
func (l *Log) Raise(evs ...Event) {
	for _, ev := range evs {
		if ev.ID.IsZero() {
			ev.ID = NewID()
		}
		l.raised = append(l.raised, ev)
	}
}

// Raised returns the events that were raised and not yet forgotten, oldest first. The slice is the caller's.
func (l *Log) Raised() []Event {
	return append([]Event(nil), l.raised...)
}

// ForgetRaised drops the n oldest events; the outbox calls it when they are committed.
func (l *Log) ForgetRaised(n int) {
	n = min(max(n, 0), len(l.raised))
	l.raised = append([]Event(nil), l.raised[n:]...)
}
