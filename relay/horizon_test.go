package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/store"
)

// TestProtocol10_Horizon: the horizon moves when everybody has ended who was writing at the check before, waits a while for those who
// take longer, and then sets them aside.
func TestProtocol10_Horizon(t *testing.T) {
	var h horizon
	say := func(drawn int64, open ...string) {
		h.check(store.Writers{Drawn: drawn, Open: open}, 0, time.Now())
	}
	want := func(seq int64, old int) {
		t.Helper()
		if h.seq != seq || len(h.old) != old {
			t.Fatalf("the horizon is %d with %d set aside, want %d with %d", h.seq, len(h.old), seq, old)
		}
	}
	say(10)
	want(10, 0) // nobody writes
	say(20, "a")
	want(10, 0) // a may have drawn 20
	say(30, "a", "b")
	want(10, 0)
	say(40, "b")
	want(20, 0) // a has ended
	say(50, "c")
	want(40, 0) // b has ended, and it is the only one who may have drawn before 40
	for range oldChecks {
		want(40, 0)
		say(60, "c")
	}
	want(60, 1) // all that was drawn is there or comes from c
	say(70, "c", "d")
	say(80, "c")
	want(80, 1) // c holds nothing up any more
	if _, some := h.ended(&store.Writers{Open: []string{"c"}}); some {
		t.Error("c has not ended")
	}
	if from, some := h.ended(&store.Writers{}); !some || from != 40 {
		t.Errorf("what c wrote is looked for from %d (%v), want from 40", from, some)
	}
	want(80, 0)
}
