// Package reconcile finds events that should have been published and were not,
// and publishes them again.
//
// A [Job] is a name, a schedule, a window of the past and a Find, which yields
// the events that should exist and have left no trace. Find compares the
// business tables, which are the source of truth, with the effects of the
// events. The reconciler writes each yielded event to the outbox again, under a
// new id and with its natural dedup key. A Repair fixes gaps in its own way
// instead, and a Check only reports.
//
//	jobs := []reconcile.Job{{
//		Name: "enrollment-reconcile", Schedule: reconcile.Every(time.Minute), LookBack: time.Hour,
//		Find: func(ctx context.Context, w reconcile.Window, missing func(waybill.Event) error) error { … },
//	}}
//	rec, err := reconcile.New(db, jobs, reconcile.Config{}) // db: any of the stores
//	err = rec.Run(ctx)
//
// # Guarantees
//
//   - A job runs on one node at a time, by the database's clock. A node that
//     lost its lease sends no more events: the transaction of every batch
//     checks the lease.
//   - The transaction that sends an event also remembers it, for the length of
//     the look-back, so that it is not sent again in that time. An event that
//     is still pending, from any writer, is not sent a second time.
//   - Events younger than MinAge are not sent: they may be in flight.
//
// The original may still arrive between the query of the tables and the write,
// so the same fact may be published under several event ids. Consumers of such
// events deduplicate by dedup key (inbox.ByDedupKey), or have a unique key of
// their own.
//
// The reconciler works the same over memstore, where it is the only safety net:
// events that a crash removed from the queue are found again in the tables.
package reconcile
