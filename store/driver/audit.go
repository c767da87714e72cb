package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Audit is implemented by stores that record the changes of operators.
//
// A method that changes rows for an operator writes a record, in the
// transaction of the change, if its context has one: see [WithAudit]. It writes
// none if it changes nothing. These methods are Replay, Discard and Unblock of
// [DeadLetters]; Purge, PurgeWritten and SetLanes of [Maintainer]; Restored;
// Redrive; ResolveKey and PurgeKeys; PurgeDead and Refill of [Backlog]; and
// the methods of [Backlogs] that change destinations. The count is the number
// of rows that the method changed; it is 1 for a change of a destination or of
// a setting, and the number of deleted rows, and 1, for RemoveDestination.
//
// Records with the same id are one change: the first one is stored, and the
// counts of the others are added to it.
type Audit interface {
	// ListAudit returns records that match, the newest first by time and id,
	// at most limit: those before a cursor, or all for the zero cursor.
	ListAudit(ctx context.Context, f AuditFilter, before AuditCursor, limit int) ([]AuditRecord, error)
	// PurgeAudit deletes at most limit records that are older than age, and
	// returns their number.
	PurgeAudit(ctx context.Context, age time.Duration, limit int) (int, error)
}

// AuditCursor is a place in the audit: the time and the id of a record.
type AuditCursor struct {
	At time.Time
	ID waybill.ID
}

// AuditRecord is a change that an operator made.
type AuditRecord struct {
	// ID identifies the change. A change of many rows consists of several
	// transactions.
	ID waybill.ID
	// At is the time of the first transaction, by the database's clock.
	At time.Time
	// Actor is the name of the user who made the change. Via is the interface:
	// "cli", "http", "dashboard" or "go". Address is the origin of the request:
	// an address, or a host.
	Actor, Via, Address string
	// Action is what was done, such as "replay".
	Action string
	// Destination is the destination that was changed, or whose backlog was;
	// empty for the outbox.
	Destination string
	// Target is what the change selected: ids, a filter, a name, a reason.
	Target string
	// Count is the number of rows that were changed.
	Count int64
}

// AuditFilter selects records of the audit; empty fields match everything.
type AuditFilter struct {
	// Since and Until select by the time of the change: at or after Since, and
	// before Until.
	Since, Until  time.Time
	Actor, Action string
}

// The maximum lengths of the texts of a record, in bytes. [AuditOf] cuts longer
// ones.
const (
	maxAuditName   = 255
	maxAuditAction = 64
)

type auditKey struct{}

// WithAudit returns a context with the record of a change. The store sets At
// and adds to Count.
func WithAudit(ctx context.Context, rec AuditRecord) context.Context {
	return context.WithValue(ctx, auditKey{}, rec)
}

// AuditOf returns the record of the change that a context is for, in its stored
// form, and whether there is one. Stores call AuditOf.
func AuditOf(ctx context.Context) (AuditRecord, bool) {
	rec, ok := ctx.Value(auditKey{}).(AuditRecord)
	if !ok {
		return rec, false
	}
	for _, text := range []*string{&rec.Actor, &rec.Via, &rec.Address, &rec.Destination} {
		*text = cutText(*text, maxAuditName)
	}
	rec.Action, rec.Target = cutText(rec.Action, maxAuditAction), CutError(rec.Target)
	return rec, true
}
