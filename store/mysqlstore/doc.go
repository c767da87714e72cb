// Package mysqlstore stores the outbox, the inbox and idempotency keys in MySQL
// (8.0.19 or later) or MariaDB (10.10 or later), in the same database as the
// tables of the service. It works with transactions of database/sql and
// github.com/go-sql-driver/mysql.
//
// [Store.Migrate] creates the tables; [Store.MigrationSQL] returns the same
// statements as a script for the mariadb or mysql shell. docs/sql.md describes
// the tables for producers in other languages and for CDC tools. The store
// works with any value of parseTime, loc, time_zone, charset and
// interpolateParams in the data source name, and does not need multiStatements.
// Only autocommit must be on.
//
// # Transactions that the server ends
//
// MySQL and MariaDB may end a transaction without the client noticing, at a
// deadlock or at a DDL statement; every later statement then commits on its
// own. Every write therefore proves that its transaction is open: a write to an
// ended transaction returns [waybill.ErrTxDone]. The end of InTx does the same:
// a commit with nothing left to commit is an error, and so is a rollback after
// a DDL statement that committed the event. The store cannot see the caller's
// own statements after an error that the caller swallowed: return the error of
// a deadlock (1213) or a lock wait timeout (1205), so that InTx rolls back.
//
// # Dedup keys
//
// A producer whose event is absorbed keeps the key's row locked until its
// transaction ends, and other writers of the same key wait for that lock; a
// relay never waits for it. If READ COMMITTED is the default of the server or
// the session, absorbed producers lock nothing; prefer READ COMMITTED if one
// key is written very often. At SERIALIZABLE every read takes a lock, so expect
// deadlocks.
//
// # Inbox and idempotency keys
//
// On MariaDB, accepting a new event costs one round trip and never waits for
// another transaction that accepts the same event. MySQL statements cannot opt
// out of lock waits: accepting may wait up to one second per busy event and
// costs three more round trips. If READ COMMITTED is the default of the server
// or the session, only two transactions that accept the same new event at the
// same moment wait. Above READ COMMITTED, MySQL also locks the gap below a
// record that already existed: an event whose key falls into that gap is busy
// until the transaction ends. Leave innodb_rollback_on_timeout off: a busy
// event must not roll back the whole transaction.
//
// # Server settings and privileges
//
// innodb_flush_log_at_trx_commit must be 1, or a crash may undo transactions
// whose events were already delivered. binlog_format must not be STATEMENT,
// because relays work at READ COMMITTED. The account needs EXECUTE on the
// procedures that the migration creates. A relay's account also needs PROCESS
// to list open writers (docs/relay.md). SetLanes needs ALTER and LOCK TABLES.
// The store refuses tables of any engine other than InnoDB. A relay refuses
// clusters in which several servers accept writes, unless Config.OneNode is
// set.
//
// # Tested servers
//
// The suite of package drivertest passes on MySQL 9.7 and on MariaDB 10.11 with
// the same statements. MySQL needs one separate branch: a statement cannot
// prove its transaction there, so a write costs one more round trip. The store
// refuses TiDB, which has no stored procedures and assigns AUTO_INCREMENT out
// of order. After SetLanes, a writer that remembers the old number of lanes
// adopts the new one automatically; see docs/operating.md.
package mysqlstore
