package drivertest

// feature is a requirement of a check.
type feature int

const (
	anyStore feature = iota
	plainSQL
	savepoints
	savepointSQL
	lateCommits
	foreignTx
	storedHeaders
)

// lacks returns the reason why a store lacks the feature, or "" if it has it.
func (f Features) lacks(need feature) string {
	switch need {
	case plainSQL:
		return unless(f.PlainSQL, "no plain SQL inserts (Features.PlainSQL)")
	case savepoints:
		return unless(f.SavepointAPI || f.SavepointSQL, "no savepoints (Features.SavepointAPI, SavepointSQL)")
	case savepointSQL:
		return unless(f.SavepointSQL, "no savepoints with SQL text (Features.SavepointSQL)")
	case lateCommits:
		return unless(f.LateCommits, "no row can appear below an already read seq (Features.LateCommits)")
	case foreignTx:
		return unless(f.ForeignTx, "no transactions but the store's own (Features.ForeignTx)")
	case storedHeaders:
		return unless(f.StoredHeaders, "the stored text of headers cannot be overwritten (Features.StoredHeaders)")
	case anyStore:
	}
	return ""
}

func unless(has bool, reason string) string {
	if has {
		return ""
	}
	return reason
}
