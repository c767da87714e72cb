// Package chaos runs a service with its relays on a PostgreSQL server of its own while everything around them breaks, and then
// proves from what is left that the relays kept their promises.
//
// [TestChaos] starts three relay processes and two producer processes. For two minutes (-chaos.time) a schedule that is drawn from a
// seed (-chaos.seed) kills them, stops them for shorter and for longer than their lease, terminates them, takes destinations down,
// replays dead letters and crashes the database server; the sinks fail, panic, dawdle and kill their processes. Producers
// write, in one transaction, to a ledger and to the outbox. When the faults have ended and everything has been delivered, the
// checker compares the ledger, the journal of all deliveries (package journal) and what triggers noted about every move between the
// tables: see check_test.go for what it wants.
package chaos
