// Package store defines the roles that a database plays for Waybill, as small
// interfaces, and the process-local [Hub] that connects the writers and relays
// of one process. It also holds the rules of the table layout that every store
// shares ([LaneOf], [EncodeHeaders], [DecodeHeaders], [CutError],
// [HistoryReaches]).
//
// Roles that use the caller's transaction are generic over its type T (pgx.Tx,
// *sql.Tx); roles after the commit are not generic. A store implements the
// roles that it supports; callers accept one role each. Package storetest is
// the conformance suite for stores.
//
// Unless its documentation states otherwise, every method may be called
// concurrently, does not retain or change the slices that it receives, blocks
// no longer than its context allows, and does not retry.
package store
