// Package ledger is the state machine of the relay: which events are in memory,
// which of them may be delivered, what is settled, and which rows to read next.
//
// The ledger is pure. It has no goroutine, clock, store, logger or source of
// randomness: the engine passes the time to every input, runs the reads,
// deliveries and settlements that the ledger asks for, and reports what
// happened. The same inputs give the same outputs.
//
//	in                          out
//	LaneAcquired, LaneLost      DueReads, StartRead
//	DrainLane                   NextBatch
//	RowsRead, ReadFailed        CountSuspects, NextSuspects
//	Announced                   NextSettlement
//	DeliveryEnded, Undelivered  Facts, Counts
//	Settled, SettlementFailed   NextWakeup
//	Probe, Distrust, Stop
//
// An event is an [Item] from the time when its row is read, or announced by its
// writer, until the relay has processed a read that began after the event's
// settlement. The method move makes every change of an item's state; the table
// of allowed changes is beside it. The type scan holds how far a lane has been
// read, and plan when to read what.
//
// docs/protocol.md has the rules that the ledger implements. The scripts in
// testdata show each of them.
package ledger
