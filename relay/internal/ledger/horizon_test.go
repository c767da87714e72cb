package ledger

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// TestHorizon: the horizon moves when every transaction that was open at the
// previous check has ended, waits a while for transactions that take longer,
// and then excludes them.
func TestHorizon(t *testing.T) {
	var h horizon
	say := func(drawn int64, open ...string) {
		h.check(driver.WriterState{HighSeq: drawn, Issued: drawn, Open: open}, 0, time.Now())
	}
	want := func(seq int64, old int) {
		t.Helper()
		if h.seq != seq || len(h.old) != old {
			t.Fatalf("the horizon is %d with %d excluded, want %d with %d", h.seq, len(h.old), seq, old)
		}
	}
	say(10)
	want(10, 0) // no transaction is open
	say(20, "a")
	want(10, 0) // a may have drawn 20
	say(30, "a", "b")
	want(10, 0)
	say(40, "b")
	want(20, 0) // a has ended
	say(50, "c")
	want(40, 0) // b has ended, and only b may have drawn before 40
	for range oldChecks {
		want(40, 0)
		say(60, "c")
	}
	want(60, 1) // every drawn row is visible or comes from c
	say(70, "c", "d")
	say(80, "c")
	want(80, 1) // c does not hold the horizon back any more
	if _, some := h.ended(&driver.WriterState{Open: []string{"c"}}); some {
		t.Error("c has not ended")
	}
	if from, some := h.ended(&driver.WriterState{}); !some || from != 40 {
		t.Errorf("rows of c are searched from %d (%v), want from 40", from, some)
	}
	want(80, 0)
}

// TestHorizonGoesBack: after a crash of the database a sequence goes back by
// the seqs that were drawn and not flushed. Seqs that are drawn again are above
// the horizon only if the horizon goes back as well.
func TestHorizonGoesBack(t *testing.T) {
	var h horizon
	say := func(drawn, read int64, open ...string) {
		h.check(driver.WriterState{HighSeq: drawn, Issued: drawn, Open: open}, read, time.Now())
	}
	want := func(seq int64) {
		t.Helper()
		if h.seq != seq {
			t.Fatalf("the horizon is %d, want %d", h.seq, seq)
		}
	}
	say(100, 70)
	want(100)
	say(66, 70, "a") // a may have drawn any earlier seq again, also 66
	want(0)
	say(68, 70, "a")
	want(0) // a has not ended, and the read of 70 says nothing about 68
	say(69, 70)
	want(69)
	say(75, 70)
	want(75)
	say(75, 80)
	want(80) // the sequence has caught up: seqs that were read have been drawn
}

// TestHorizonAfterAFailure: after the server has failed the horizon is reset,
// because by the next check more seqs may have been drawn than before the
// crash, so that nothing shows that the sequence had gone back.
func TestHorizonAfterAFailure(t *testing.T) {
	var h horizon
	h.check(driver.WriterState{HighSeq: 100, Issued: 100}, 70, time.Now())
	h.forget()
	if !h.next.IsZero() {
		t.Error("the store is not asked at once")
	}
	h.check(driver.WriterState{HighSeq: 120, Issued: 120, Open: []string{"a"}}, 70, time.Now()) // a may have drawn 67
	if h.seq != 0 {
		t.Errorf("the horizon is %d while a is open, want 0", h.seq)
	}
	h.check(driver.WriterState{HighSeq: 130, Issued: 130}, 70, time.Now())
	if h.seq != 130 {
		t.Errorf("the horizon is %d when a has ended, want 130", h.seq)
	}
}

// TestHorizonStaysWhenRowsAreDeleted: delivered rows are deleted, so that the
// highest seq in the table falls. The sequence has not gone back: the horizon
// stays, reads do not begin at 0 again, and an idle relay stops checking open
// transactions.
func TestHorizonStaysWhenRowsAreDeleted(t *testing.T) {
	h := horizon{}
	lanes := []*lane{{scan: scan{position: 70}}}
	h.check(driver.WriterState{HighSeq: 100, Issued: 100}, 70, time.Now())
	for _, drawn := range []int64{90, 0} {
		h.check(driver.WriterState{HighSeq: drawn, Issued: 100}, 70, time.Now())
		if h.seq != 100 || h.behind || h.wanted(lanes) {
			t.Errorf("highest row %d: the horizon is %d, behind %v, wanted %v; want 100, false, false", drawn, h.seq, h.behind, h.wanted(lanes))
		}
	}
	h.forget() // a heartbeat failed
	h.check(driver.WriterState{HighSeq: 0, Issued: 100}, 70, time.Now())
	if h.seq != 70 || h.behind || h.wanted(lanes) {
		t.Errorf("after a failure: the horizon is %d, behind %v, wanted %v; want 70, false, false", h.seq, h.behind, h.wanted(lanes))
	}
}
