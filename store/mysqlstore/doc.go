// Package mysqlstore keeps the outbox and the inbox in MySQL (8.0.19 or later) or MariaDB (10.10 or
// later), beside the tables of the service, for transactions of database/sql with
// github.com/go-sql-driver/mysql.
//
// [Store.Migrate] makes the tables; [Store.MigrationSQL] is the same as a script for the mariadb or mysql shell. docs/sql.md
// describes the tables for producers in other languages and for CDC tools. The settings of the data source name do not matter:
// parseTime, loc, time_zone, charset and interpolateParams may be what they are, and multiStatements is not needed. Only
// autocommit must be on.
//
// These servers may end a transaction behind the client's back, at a deadlock or at a DDL
// statement; what follows is then committed statement by statement. Every write therefore proves
// that its transaction is open: a write to one that has ended is [waybill.ErrTxDone]. So does the
// end of InTx: a commit that has nothing to commit any more is an error, and so is a rollback
// behind a DDL statement that has committed the event. What the caller's own statements do after an
// error that was swallowed cannot be seen here: return the error of a deadlock (1213) or a lock
// wait timeout (1205), so that InTx rolls back.
//
// Dedup keys: a producer that is absorbed keeps the key's row locked until its transaction ends, and others that write the same key
// wait for it; a relay never does. At READ COMMITTED, as the server's or the session's default, absorbed producers lock nothing;
// that is the better choice where one key is written very often. At SERIALIZABLE every look is a lock, and deadlocks are to be
// expected.
//
// The inbox and idempotency keys: on MariaDB accepting a new event costs one round trip, and never
// waits for another transaction that is at the same event. MySQL's statements cannot say that they
// do not wait: there it may wait for a second for each event that is busy, and costs three more
// round trips; where READ COMMITTED is the server's or the session's default, only two first comers
// in the same moment wait. Above READ COMMITTED MySQL also locks the gap below an event that was
// there already: one that belongs into it is busy until the transaction ends. An event that is busy must not cost the transaction: leave
// innodb_rollback_on_timeout off.
//
// What to know about the server: innodb_flush_log_at_trx_commit must be 1, or a crash may take back what was already delivered;
// binlog_format must not be STATEMENT, because relays work at READ COMMITTED; the account needs the right to EXECUTE the
// procedures that the migration makes, a relay's account that of PROCESS to see who still writes (docs/relay.md), and for SetLanes those to ALTER
// and LOCK TABLES. Tables of another engine than InnoDB are refused.
//
// The suite of package storetest is proven on MySQL 9.7 and on MariaDB 10.11, by the same
// statements. MySQL has one branch of its own: it cannot prove a transaction inside a statement, so
// a write costs one more round trip. TiDB is refused: it has no stored procedures, and its
// AUTO_INCREMENT is not in order. After SetLanes a writer that remembers another number of lanes
// follows by itself; see docs/operating.md.
package mysqlstore
