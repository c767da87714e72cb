package driver

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Store is a database that Waybill's packages use. T is the type of its
// transactions.
type Store[T any] interface {
	// Driver returns the roles of the store. They are the same at every call.
	Driver() Roles[T]
}

// Roles are the roles of a store. A nil field is a role that the store does not
// have. Roles may get more fields in minor versions.
type Roles[T any] struct {
	// Outbox writes events, for package outbox.
	Outbox Outbox[T]
	// Relay reads and settles events, for package relay.
	Relay Relay
	// Inbox records consumed events, for package inbox.
	Inbox Inbox[T]
	// Keys stores idempotency keys, for package idempotency.
	Keys Keys[T]
	// Jobs stores the runs of jobs, for package reconcile, which also needs
	// Outbox.
	Jobs Jobs[T]

	// OutboxAdmin, InboxRecords, KeyRecords and JobRecords inspect and maintain
	// the tables, for package admin.
	OutboxAdmin  OutboxAdmin
	InboxRecords InboxRecords
	KeyRecords   KeyRecords
	JobRecords   JobRecords
	// Migrator creates and upgrades the tables. It is nil for a store without
	// tables.
	Migrator Migrator

	// Finisher removes an outbox row in the consumer's transaction. Optional:
	// without it the relay settles the event after the consumer's commit.
	Finisher Finisher[T]
	// SinkGuard records the sink of the outbox. Optional: without it a relay
	// with another sink is not detected.
	SinkGuard SinkGuard
	// Watcher notifies a relay of writes by other processes. Optional: without
	// it the relay finds them by polling.
	Watcher Watcher
	// Backlogs keeps the events that some destinations have yet to receive.
	// Optional: without it a relay has one destination.
	Backlogs Backlogs
	// Restorer continues after the tables were restored from a backup.
	// Optional: without it positions may be issued twice after a restoration.
	Restorer Restorer
	// Audit records the changes of operators. Optional: without it nothing is
	// recorded.
	Audit Audit
	// Rollups keeps the counts of deliveries that nodes send with their
	// heartbeats. Optional: without it the counts are not stored.
	Rollups Rollups
	// HistoryAudit compares the history with the records of a consumer group.
	// Optional: without it, reconcile.Unrecorded is unavailable.
	HistoryAudit HistoryAudit
}

// Driver returns r, so that roles can be used as a [Store].
func (r Roles[T]) Driver() Roles[T] { return r }

// Names returns the names of the roles that the store has, in the order of the
// fields of Roles.
func (r Roles[T]) Names() []string {
	var names []string
	v := reflect.ValueOf(r)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
}

// Check returns a [MissingRoleError] if the store lacks one of the roles, which
// are names of fields of Roles. pkg is the package that needs the roles. Check
// returns another error if a role of the store has no hub: see [Local].
func (r Roles[T]) Check(pkg string, roles ...string) error {
	has := r.Names()
	var lacks []string
	for _, role := range roles {
		if !slices.Contains(has, role) {
			lacks = append(lacks, role)
		}
	}
	if lacks != nil {
		return &MissingRoleError{Package: pkg, Lacks: lacks, Has: has}
	}
	for _, role := range has {
		local, ok := reflect.ValueOf(r).FieldByName(role).Interface().(Local)
		if ok && local.Local() == nil {
			return fmt.Errorf("%s: the store's role %s has no hub: Local returned nil", pkg, role)
		}
	}
	return nil
}

// MissingRoleError is the error of a constructor that was given a store without
// the roles that the package needs.
type MissingRoleError struct {
	// Package is the package that needs the roles.
	Package string
	// Lacks and Has are the needed roles that the store does not have, and the
	// roles that it has, as names of fields of [Roles].
	Lacks, Has []string
}

func (e *MissingRoleError) Error() string {
	has := "no roles"
	if len(e.Has) > 0 {
		has = "the roles " + strings.Join(e.Has, ", ")
	}
	return fmt.Sprintf("%s: the store lacks the role %s; it has %s", e.Package, strings.Join(e.Lacks, ", "), has)
}

// Get returns the roles of a store for a package, and an error if db is nil,
// lacks one of the roles, or has a role without a hub.
func Get[T any](db Store[T], pkg string, roles ...string) (Roles[T], error) {
	if v := reflect.ValueOf(db); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return Roles[T]{}, fmt.Errorf("%s: the store is nil", pkg)
	}
	r := db.Driver()
	return r, r.Check(pkg, roles...)
}

// Complete is a type that implements every role.
type Complete[T any] interface {
	Outbox[T]
	Relay
	Inbox[T]
	Keys[T]
	Jobs[T]
	OutboxAdmin
	Finisher[T]
	SinkGuard
	HistoryAudit
}

// RolesOf returns the roles of a type that implements all of them. Migrator,
// Watcher, Backlogs, Restorer, Audit and Rollups are set if db implements them;
// a type that embeds [Unimplemented] implements Migrator. A store with some of
// the roles sets the fields of [Roles] instead.
func RolesOf[T any](db Complete[T]) Roles[T] {
	r := Roles[T]{
		Outbox: db, Relay: db, Inbox: db, Keys: db, Jobs: db,
		OutboxAdmin: db, InboxRecords: db, KeyRecords: db, JobRecords: db,
		Finisher: db, SinkGuard: db, HistoryAudit: db,
	}
	r.Migrator, _ = db.(Migrator)
	r.Watcher, _ = db.(Watcher)
	r.Backlogs, _ = db.(Backlogs)
	r.Restorer, _ = db.(Restorer)
	r.Audit, _ = db.(Audit)
	r.Rollups, _ = db.(Rollups)
	return r
}
