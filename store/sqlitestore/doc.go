// Package sqlitestore stores the outbox, the inbox and idempotency keys in
// SQLite, in the same file as the service's own tables. It is pure Go (the
// driver is modernc.org/sqlite): nothing has to be installed.
//
//	db, err := sqlitestore.Open("shop.db", sqlitestore.Config{})
//	defer db.Close()
//	_, err = db.Migrate(ctx)
//	box, err := outbox.New(db, outbox.Config{}) // *outbox.Outbox[*sql.Tx]
//
// [Open] opens the file with the settings that the outbox needs; [New] works
// over an existing [*sql.DB]. [Store.Migrate] creates the tables;
// [Store.MigrationSQL] returns the same migrations as a script for the sqlite3
// shell.
//
// # Guarantees
//
//   - A transaction that the store begins has the write lock from the start.
//     It cannot fail halfway because another transaction has written since it
//     began to read. SQLite fails a transaction that turns from reading to
//     writing in that case, immediately and regardless of the busy timeout.
//   - Writers of one store take turns in the order of their arrival; they do
//     not poll. The store waits with SQLite's own means for writers that do
//     not go through the store, in this process or another. Readers never
//     wait.
//   - A write fails with [waybill.ErrTxDone] if SQLite has silently rolled the
//     transaction back, as SQLite does when a statement is interrupted or the
//     disk is full. Without that check the event would be committed alone.
//   - The outbox is in the file of the connection, never in an attached file:
//     in WAL mode a commit is not atomic across files.
//
// # Requirements
//
// The store needs a file in WAL mode on a local disk, and SQLite 3.51.3 or
// later: older versions can corrupt a file in WAL mode. The store checks the
// mode and the version before its first statement. Leave synchronous at FULL,
// as Open sets it: with a lower setting, a power failure may take back a
// transaction whose events have been delivered.
//
// SQLite has no clock; it uses the clock of the process. All processes that
// share the file run on one machine and share its clock, and this package reads
// the same clock in Go.
package sqlitestore
