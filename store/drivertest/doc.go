// Package drivertest has the conformance suites for stores: each guarantee of
// package driver is a test that can fail. There is one suite per role:
// [RunOutbox], [RunRelay], [RunInbox], [RunKeys], [RunJobs], [RunAdmin] and
// [RunBacklogs]; [Run] runs all of them. A suite needs only the roles that its
// documentation names, so that a store with one role can be tested. A store
// runs a suite from its own tests:
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
// A subtest is named after a behavior of stores and a check of it:
// TestConformance/stale_owner_fenced/stale_leases_change_nothing. The names are
// stable. The [Report] has one entry per behavior. A behavior that a store does
// not support, because a feature or an optional role is missing, is a "no" with
// a reason in the report, never a silent skip.
//
// The suites do not sleep and assert no duration: they poll for effects of the
// database's clock, with a generous deadline. Run them with the race detector.
// The random test logs its seed; DRIVERTEST_SEED=… repeats it.
package drivertest
