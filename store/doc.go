// Package store names the roles that a database plays for Waybill, as small interfaces, and holds the process-local
// [Hub] at which writers and relays of one process meet. It has no logic of its own beyond the rules of the table
// layout that every store must share ([LaneOf], [EncodeHeaders], [DecodeHeaders], [CutError],
// [HistoryReaches]).
//
// Roles that touch the caller's transaction are generic over its type T (pgx.Tx, *sql.Tx); what happens after the
// commit is plain. A store satisfies the roles it can play; callers take one role each. Package storetest has the
// suite that every store passes.
//
// What holds for every method here, unless it says otherwise: it may be called concurrently; it does not keep the
// slices it is handed, nor touch them after it returned; it blocks no longer than its context allows; it does not retry.
package store
