// Package driver is for authors of stores. Users of Waybill need it only to
// pass a store to the constructors of the other packages.
//
// A store gives Waybill's packages its [Roles], one per package: [Outbox] for
// package outbox, [Relay] for package relay, and so on. A store implements the
// roles that it supports; a constructor whose role is missing returns a
// [MissingRoleError]. Package drivertest has the conformance suites.
//
// The roles may grow in minor versions. A type that implements a role embeds
// [Unimplemented], so that the type compiles with a later version of this
// package; a method that the type lacks fails with [ErrUnimplemented].
// [Session] does not grow: a later version adds an optional interface, such as
// [Deferrer], instead.
//
// Roles that use the caller's transaction are generic over its type T (pgx.Tx,
// *sql.Tx); roles after the commit are not generic. The process-local [Hub]
// connects the writers and relays of one process. The rules of the table layout
// that every store shares are here, too: [LaneOf], [EncodeHeaders],
// [DecodeHeaders], [CutError], [HistoryReaches].
//
// Unless its documentation states otherwise, every method may be called
// concurrently, does not retain or change the slices that it receives, blocks
// no longer than its context allows, and does not retry.
package driver
