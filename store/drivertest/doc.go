// Package drivertest is the conformance suite for stores: each guarantee of
// package store is a test that can fail. A store runs it from its own tests:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness[*sql.Tx]{
//			Name: "mystore",
//			Features: drivertest.Features{
//				PlainSQL: true, SavepointSQL: true, ForeignTx: true, StoredHeaders: true,
//			},
//			Open: open, // returns a store over fresh, empty, migrated tables
//		})
//	}
//
// Tests are named after the rows of the [Matrix]: numbered rows are about
// writing, W rows are more about writing, R rows about reading, L rows about
// lanes, S rows about settlements, I rows about the inbox, K rows about
// idempotency keys, J rows about jobs, and O rows about operations. An
// unsupported feature is a "no" in the store's column of the matrix, never a
// silent skip; columns of stores that are not in the matrix are only printed.
//
// The suite does not sleep and asserts no duration: it polls for effects of the
// database's clock, with a generous deadline. Run it with the race detector.
// The random test logs its seed; STORETEST_SEED=… repeats it.
package drivertest
