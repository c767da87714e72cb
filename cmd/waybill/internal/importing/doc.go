// Package importing copies the undelivered rows of another system's outbox
// table into the outbox of the same database.
//
// A [Layout] describes the table of one system: which rows wait, in which
// order, and which event a row is. [Run] is the same for all of them. It writes
// a batch of events, records their rows as imported, and marks or deletes the
// rows, in one transaction. The records are those of package reconcile, under
// the job "import:SOURCE:TABLE": the job's fence admits one import at a time,
// and a row that is recorded is never written again.
package importing
