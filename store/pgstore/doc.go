// Package pgstore stores the outbox, the inbox and idempotency keys in
// PostgreSQL (tested with 14 to 18), in the service's own database.
//
// The package has two stores over the same tables: [New] returns a store for
// pgx pools, whose transactions are pgx.Tx, and [NewSQL] returns a store for
// database/sql with any driver, whose transactions are *sql.Tx. With pgx, an
// event that is written inside InTx is buffered and sent in front of the next
// statement of its transaction, in the same round trip. An event that is
// written last is sent with the COMMIT. Neither costs a separate round trip.
// With database/sql, a write is sent immediately.
//
// [Store.Migrate] creates the tables; [Store.MigrationSQL] returns the same
// migrations as a script for psql. docs/sql.md describes the tables for
// producers in other languages and for CDC tools.
package pgstore
