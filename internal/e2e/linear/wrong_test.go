package linear

import "testing"

// maxRuns is the number of runs in which the checker must find a mistake. It
// finds most of them in the first run.
const maxRuns = 200

// TestWrongRelays checks that the checker finds every mistake, and none in the
// same store without a mistake.
func TestWrongRelays(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	run := func(t *testing.T, seed uint64, wrap func(*tracked) relayStore) *history {
		target := relayOver(t, openMemory(t).Driver(), faults{}, 0, 1)
		target.db = wrap(track(target.db))
		return runRelay(t, target, seed)
	}
	for i := range uint64(runsInMemory) {
		want(t, seed+i, relayModel, run(t, seed+i, func(right *tracked) relayStore { return right }))
	}
	for name, wrap := range wrongRelays {
		t.Run(name, func(t *testing.T) {
			wantFound(t, relayModel, func(i uint64) *history { return run(t, seed+i, wrap) })
		})
	}
}

// TestWrongKeys is TestWrongRelays for keys.
func TestWrongKeys(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	run := func(t *testing.T, seed uint64, wrap func(memoryKeys) memoryKeys) *history {
		return runKeys(t, wrap(openMemory(t).Driver().Keys), faults{}, seed)
	}
	for i := range uint64(runsInMemory) {
		want(t, seed+i, keysModel, run(t, seed+i, func(right memoryKeys) memoryKeys { return overlapping{right} }))
	}
	for name, wrap := range wrongKeys {
		t.Run(name, func(t *testing.T) {
			wantFound(t, keysModel, func(i uint64) *history { return run(t, seed+i, wrap) })
		})
	}
}

// TestWrongInboxes is TestWrongRelays for the inbox.
func TestWrongInboxes(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	for name, wrap := range wrongInboxes {
		t.Run(name, func(t *testing.T) {
			wantFound(t, inboxModel, func(i uint64) *history {
				return runInbox(t, wrap(openMemory(t).Driver().Inbox), faults{}, seed+i)
			})
		})
	}
}

// wantFound runs a store with a mistake until the checker finds it.
func wantFound(t *testing.T, m model, run func(i uint64) *history) {
	t.Helper()
	for i := range uint64(maxRuns) {
		if v, _ := check(m, run(i)); v != nil {
			t.Logf("found in run %d: %s", i+1, v.part)
			return
		}
	}
	t.Errorf("the checker did not find the mistake in %d runs", maxRuns)
}
