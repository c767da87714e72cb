// Package storetest is the conformance suite that every store passes: the behaviours that package store promises, each
// as a test that can fail. A store runs it from its own tests:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Harness[*sql.Tx]{
//			Name:     "mystore",
//			Features: storetest.Features{PlainSQL: true, SavepointSQL: true, ForeignTx: true, StoredHeaders: true},
//			Open:     open, // a store over fresh, empty, migrated tables, and a few functions that look behind it
//		})
//	}
//
// Tests are named after the behaviours: behaviour_1 to behaviour_33 are the numbered ones of the project, W is more about
// writing, R about reading, L about lanes, S about settlements and O about operating. What a store cannot show is a "no"
// in its column of the [Matrix], never a silent skip; columns of stores that the matrix does not know are printed only.
//
// The suite needs no sleep and asserts no duration: where something takes effect by the database's clock it polls for it,
// with a generous deadline. Run it with the race detector on. The random test logs its seed; STORETEST_SEED=… repeats it.
package storetest
