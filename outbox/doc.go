// Package outbox puts events into the caller's own database transaction: they exist if and only if it commits.
//
//	box, err := outbox.New(db, outbox.Config{}) // db: one of the stores, e.g. pgstore.New(pool, pgstore.Config{})
//
//	err = box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, `INSERT INTO orders …`); err != nil {
//			return err
//		}
//		return box.Write(ctx, tx, OrderPlaced.New(orderID, Placed{Total: 9990}))
//	})
//
// # What holds
//
//   - An event is stored if and only if the transaction it was written in commits, and nothing after the commit can lose
//     it: what a relay in this process is told at once, it would also find in the table.
//   - Events written in one transaction keep their order.
//   - An event is checked before the database is touched, and written as it was at that moment: what the caller does to
//     its payload or headers afterwards changes nothing.
//   - A write that the database refused makes InTx roll back, even if its error is swallowed.
//   - An error of InTx that matches [waybill.ErrUncertain] means that nobody knows whether the commit took place
//     ([UncertainError]); any other error means that nothing was stored.
//
// # Whose transaction
//
// [Outbox.InTx] begins and ends one, with callbacks and the shortest way to the relay. A transaction that something else
// commits works too: hand it to [Outbox.Write] ([WriteSQL] for libraries that hide their [*sql.Tx]) and call
// [Outbox.Wake] after the commit; hooks that follow the commit do not run then, because nobody sees it.
package outbox
