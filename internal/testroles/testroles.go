// Package testroles builds the roles of a store for tests that wrap one.
package testroles

import (
	"fmt"
	"reflect"

	"github.com/waybillhq/waybill/store/driver"
)

// Of returns the roles that db implements. It panics if db is a store or embeds
// one: the store's own roles would bypass the wrapper.
func Of[T any](db any) driver.Roles[T] {
	if _, store := reflect.TypeOf(db).MethodByName("Driver"); store {
		panic(fmt.Sprintf("testroles: %T is a store, want a type that implements roles", db))
	}
	var r driver.Roles[T]
	r.Outbox, _ = db.(driver.Outbox[T])
	r.Relay, _ = db.(driver.Relay)
	r.Inbox, _ = db.(driver.Inbox[T])
	r.Keys, _ = db.(driver.Keys[T])
	r.Jobs, _ = db.(driver.Jobs[T])
	r.OutboxAdmin, _ = db.(driver.OutboxAdmin)
	r.InboxRecords, _ = db.(driver.InboxRecords)
	r.KeyRecords, _ = db.(driver.KeyRecords)
	r.JobRecords, _ = db.(driver.JobRecords)
	r.Migrator, _ = db.(driver.Migrator)
	r.Finisher, _ = db.(driver.Finisher[T])
	r.SinkGuard, _ = db.(driver.SinkGuard)
	r.Watcher, _ = db.(driver.Watcher)
	r.HistoryAudit, _ = db.(driver.HistoryAudit)
	r.Backlogs, _ = db.(driver.Backlogs)
	r.Restorer, _ = db.(driver.Restorer)
	r.Audit, _ = db.(driver.Audit)
	r.Rollups, _ = db.(driver.Rollups)
	return r
}

// Complete returns the type behind a store that implements every role, for
// wrappers that replace a method of several roles.
func Complete[T any](db driver.Store[T]) driver.Complete[T] {
	return db.Driver().Relay.(driver.Complete[T])
}
