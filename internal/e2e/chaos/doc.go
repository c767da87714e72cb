// Package chaos runs a service with its relays on a PostgreSQL server of its
// own under faults, and then proves from the remaining data that the relays
// kept their guarantees.
//
// [TestChaos] starts three relay processes and two producer processes. For one
// minute (-chaos.time) a schedule that is drawn from a seed (-chaos.seed)
// kills them, stops them for shorter and for longer than their lease,
// terminates them, makes destinations unavailable, replays dead letters and
// crashes the database server; the sinks fail, panic, delay and kill their
// processes. Producers write, in one transaction, to a ledger and to the
// outbox. When the faults have ended and every event has been delivered, the
// checker compares the ledger, the journal of all deliveries (package journal)
// and the trigger's records of every move between the tables: see check_test.go
// for the rules.
package chaos
