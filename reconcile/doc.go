// Package reconcile is the safety net: it finds what should have been told and was not, and tells it again.
//
// A [Job] is a name, a schedule, a window of the past and a Find, which yields the events that should exist and have left no trace. It compares
// the truth, which is the business tables, with what the event should have led to. What it yields is written to the outbox again, under a
// new id and with its natural dedup key. A Repair mends in its own way instead, and a Check only reports.
//
//	jobs := []reconcile.Job{{
//		Name: "enrollment-reconcile", Schedule: reconcile.Every(time.Minute), LookBack: time.Hour,
//		Find: func(ctx context.Context, w reconcile.Window, missing func(waybill.Event) error) error { … },
//	}}
//	rec, err := reconcile.New(db, jobs, reconcile.Config{}) // db: any of the stores
//	err = rec.Run(ctx)
//
// # What holds
//
//   - A job runs on one node at a time, by the database's clock. One that lost its lease sends nothing more: every batch checks it in the
//     transaction that has the events.
//   - What a job has sent is remembered in the transaction that sends it, for the length of the look-back, and not sent again meanwhile. What is
//     still pending, from whomever, is not sent a second time.
//   - What is younger than MinAge is left alone: it may be on its way.
//
// Between the look at the tables and the sending, the original may still arrive, so the same fact may be told under several event ids.
// Consumers of such events deduplicate by dedup key (inbox.ByDedupKey), or have a unique key of their own.
//
// It works the same over memstore, where it is the only safety net: what a crash took out of the queue is found again in the tables.
package reconcile
