package inbox

import (
	"testing"
	"testing/synctest"
)

// TestASuspectWaitsForCountedAttempts: a suspect waits until every attempt that
// was counted beforehand has ended, and no such attempt begins until the
// suspect has ended.
func TestASuspectWaitsForCountedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var ends []func()
		for range 2 {
			_, end, err := turns.among(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		begin := func(turn func() (func(), error)) (release func(), begun func() bool) {
			got := make(chan func(), 1)
			go func() {
				end, err := turn()
				if err != nil {
					t.Error(err)
				}
				got <- end
			}()
			return func() { (<-got)() }, func() bool { synctest.Wait(); return len(got) == 1 }
		}
		endSuspect, suspect := begin(func() (func(), error) { _, end, err := turns.alone(t.Context()); return end, err })
		for i, end := range ends {
			if suspect() {
				t.Errorf("the suspect begins while %d attempts are in flight", len(ends)-i)
			}
			end()
		}
		if !suspect() {
			t.Fatal("the suspect waits, and no attempt is in flight")
		}
		endNext, next := begin(func() (func(), error) { _, end, err := turns.among(t.Context()); return end, err })
		if next() {
			t.Error("an attempt begins while the suspect is handled")
		}
		endSuspect()
		if !next() {
			t.Error("an attempt waits, and the suspect has ended")
		}
		endNext()
	})
}
