package idempotency

import (
	"testing"
	"testing/synctest"
)

// TestAnEventThatHasHappened: a waiter is woken, whether it comes before or
// after the event.
func TestAnEventThatHasHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e event
		early := e.happened()
		synctest.Wait()
		select {
		case <-early:
			t.Error("it has not happened yet")
		default:
		}
		e.happen()
		<-early
		<-e.happened()
		var late event
		late.happen()
		<-late.happened()
	})
}
