// Package outbox writes events in the caller's own database transaction: an
// event exists if and only if that transaction commits.
//
//	// db is a store, such as pgstore.New(pool, pgstore.Config{})
//	box, err := outbox.New(db, outbox.Config{})
//
//	err = box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		return box.Write(ctx, tx, OrderPlaced.New(orderID, Placed{Total: 9990}))
//	})
//
// # Guarantees
//
//   - An event is stored if and only if its transaction commits. Nothing after
//     the commit can lose the event: a relay that misses the in-process
//     notification finds the event in the table.
//   - Events written in one transaction keep their order.
//   - An event is validated before any SQL runs and is copied at that moment:
//     later changes to its payload or headers have no effect.
//   - A write that the database rejects makes InTx roll back, even if the
//     caller ignores the error.
//   - An error of InTx that matches [waybill.ErrUncertain] means that the
//     outcome of the commit is unknown ([UncertainError]); any other error
//     means that nothing was stored.
//
// # Transactions of the caller
//
// [Outbox.InTx] begins and ends the transaction itself, runs the callbacks and
// notifies the relay at once. A transaction that the caller commits works too:
// pass it to [Outbox.Write] ([WriteSQL] for libraries that hide their
// [*sql.Tx]) and call [Outbox.Wake] after the commit. AfterCommit and
// AfterRollback hooks do not run for such a transaction, because the outbox
// does not see its end.
package outbox
