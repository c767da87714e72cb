// Package sqlitestore keeps the outbox and the inbox in SQLite, in the same file as the tables of the service. It is pure Go (the driver
// is modernc.org/sqlite): nothing has to be installed.
//
//	db, err := sqlitestore.Open("shop.db", sqlitestore.Config{})
//	defer db.Close()
//	_, err = db.Migrate(ctx)
//	box, err := outbox.New(db, outbox.Config{}) // *outbox.Outbox[*sql.Tx]
//
// [Open] opens the file with the settings that the outbox wants; [New] works over a [*sql.DB] that is already there.
// [Store.Migrate] makes the tables; [Store.MigrationSQL] is the same as a script for the sqlite3 shell.
//
// # What holds
//
//   - A transaction that the store begins has the write lock from its first moment. It cannot fail halfway because somebody
//     else has written since it began to read, which is what SQLite does to a transaction that turns from reading to
//     writing, at once and whatever the busy timeout.
//   - Writers of one store take turns in the order in which they came; they do not poll. Writers that do not go through
//     the store, in this process or another, are waited for with SQLite's own means. Readers wait for nobody.
//   - A write is refused with [waybill.ErrTxDone] where SQLite has rolled the transaction back behind the caller's back, as
//     it does when a statement is interrupted or the disk is full. Without that check the event would be committed alone.
//   - The outbox is in the file of the connection, never in an attached one: in WAL mode a commit is not atomic across
//     files.
//
// # What it wants
//
// A file in WAL mode on a local disk, and SQLite 3.51.3 or later: older versions can corrupt a file in WAL mode. The store
// checks both before its first statement. Leave synchronous at FULL, as Open sets it: with less, a power failure may take
// back a transaction whose events have been delivered.
//
// SQLite has no clock of its own; it uses that of the process. All processes that share the file are on one machine, so they
// agree, and this package reads the same clock in Go.
package sqlitestore
