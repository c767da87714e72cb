// Package pgstore keeps the outbox and the inbox in PostgreSQL (12 or later), beside the tables of the service.
//
// It has two faces over the same tables: [New] for pgx pools, whose transactions are pgx.Tx, and [NewSQL] for database/sql
// with any driver, whose transactions are *sql.Tx. On pgx, an event that is written inside InTx waits for the next round
// trip of its transaction and goes out in front of whatever comes next; written last, it travels with the COMMIT and costs no
// round trip of its own. On database/sql a write goes out at once.
//
// [Store.Migrate] makes the tables; [Store.MigrationSQL] is the same as a script for psql. docs/sql.md describes the tables for
// producers in other languages and for CDC tools.
package pgstore
