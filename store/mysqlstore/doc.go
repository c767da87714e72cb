// Package mysqlstore keeps the outbox and the inbox in MySQL (8.0.13 or later) or MariaDB (10.10 or later), beside the tables of the service,
// for transactions of database/sql with github.com/go-sql-driver/mysql.
//
// [Store.Migrate] makes the tables; [Store.MigrationSQL] is the same as a script for the mariadb or mysql shell. docs/sql.md
// describes the tables for producers in other languages and for CDC tools. The settings of the data source name do not matter:
// parseTime, loc, time_zone, charset and interpolateParams may be what they are, and multiStatements is not needed. Only
// autocommit must be on.
//
// These servers may end a transaction behind the client's back, at a deadlock or at a DDL statement; what follows is then
// committed statement by statement. Every write therefore proves that its transaction is open: a write to one that has ended is
// [waybill.ErrTxDone]. So does the commit of InTx where hooks follow it. What the caller's own statements do after an error that was
// swallowed cannot be seen here: return the error of a deadlock (1213) or a lock wait timeout (1205), so that InTx rolls back.
//
// Dedup keys: a producer that is absorbed keeps the key's row locked until its transaction ends, and others that write the same key
// wait for it; a relay never does. At READ COMMITTED, as the server's or the session's default, absorbed producers lock nothing;
// that is the better choice where one key is written very often. At SERIALIZABLE every look is a lock, and deadlocks are to be
// expected.
//
// The inbox: on MariaDB accepting a new event costs one round trip, and never waits for another transaction that is at the same event. MySQL's
// statements cannot say that they do not wait: there it may wait for as long as innodb_lock_wait_timeout says, unless READ COMMITTED is the
// server's or the session's default. An event that is busy must not cost the transaction: leave innodb_rollback_on_timeout off.
//
// What to know about the server: innodb_flush_log_at_trx_commit must be 1, or a crash may take back what was already delivered;
// binlog_format must not be STATEMENT, because relays work at READ COMMITTED; the account needs the right to EXECUTE the
// procedures that the migration makes, a relay's account that of PROCESS to see who still writes (docs/relay.md), and for SetLanes those to ALTER
// and LOCK TABLES. Tables of another engine than InnoDB are refused.
//
// The suite of package storetest is proven on MariaDB 10.11. MySQL is served by the same statements and has one branch of its own
// (it cannot prove a transaction inside a statement, so a write costs one more round trip). TiDB is not proven: it has no stored
// procedures, so no relay can work there, and its AUTO_INCREMENT is only in order with AUTO_ID_CACHE 1, without which it is
// refused.
package mysqlstore
