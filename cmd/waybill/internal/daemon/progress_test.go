package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill/observe"
)

// TestProgress checks that a relay makes progress while it reads and its sink
// answers or, without lanes, while it renews its lease.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Progress{}
		hooks := p.watch(observe.Hooks{})
		want := func(reason string) {
			t.Helper()
			if got := p.Stuck(time.Minute); !strings.Contains(got, reason) || (reason == "") != (got == "") {
				t.Errorf("%q, want %q", got, reason)
			}
		}
		pass := func() { <-time.After(2 * time.Minute) }
		want("not been read yet")
		hooks.Lanes(observe.LanesInfo{Owned: 0, Total: 4})
		hooks.QueueDepths(observe.QueueDepthsInfo{Hot: 0, Cold: 0})
		want("") // other nodes own the lanes
		pass()
		want("no renewal of the lease")
		hooks.Lanes(observe.LanesInfo{Owned: 4, Total: 4})
		hooks.QueueDepths(observe.QueueDepthsInfo{Hot: 0, Cold: 0})
		want("not been read yet") // a heartbeat is no progress for an owner of lanes
		hooks.Read(observe.ReadInfo{Kind: "page", Rows: 0, Took: 0, Err: nil})
		want("")
		pass()
		hooks.Read(observe.ReadInfo{Kind: "page", Rows: 0, Took: 0, Err: errors.New("the database is away")})
		hooks.QueueDepths(observe.QueueDepthsInfo{Hot: 0, Cold: 0})
		want("no successful read of the tables")
		hooks.Read(observe.ReadInfo{Kind: "page", Rows: 0, Took: 0, Err: nil})
		_, done := hooks.Deliver(context.Background(), observe.DeliverInfo{Batch: nil})
		pass()
		hooks.Read(observe.ReadInfo{Kind: "page", Rows: 0, Took: 0, Err: nil})
		want("a call of the sink takes longer")
		done(observe.DeliverDoneInfo{})
		want("")
	})
}

// TestProgressOfDestinations checks that a relay with several destinations is
// stuck only if all of them are, and that slow and unavailable destinations are
// named.
func TestProgressOfDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Progress{destinations: 2}
		hooks := p.watch(observe.Hooks{})
		hooks.Lanes(observe.LanesInfo{Owned: 4, Total: 4})
		call := func(destination string) func(observe.DeliverDoneInfo) {
			_, done := hooks.Deliver(context.Background(), observe.DeliverInfo{Destination: destination})
			return done
		}
		want := func(reason string, slow ...string) {
			t.Helper()
			hooks.Read(observe.ReadInfo{Kind: "page", Rows: 0, Took: 0, Err: nil})
			if got := p.Stuck(time.Minute); got != reason {
				t.Errorf("%q, want %q", got, reason)
			}
			if got := p.Slow(time.Minute); !slices.Equal(got, slow) {
				t.Errorf("slow are %v, want %v", got, slow)
			}
		}
		pass := func() { <-time.After(2 * time.Minute) }
		first, second := call("partner"), call("partner")
		pass()
		want("", "partner")
		last := call("billing")
		want("", "partner")
		pass()
		want("calls of all destinations take longer than 1m0s", "billing", "partner")
		first(observe.DeliverDoneInfo{})
		want("calls of all destinations take longer than 1m0s", "billing", "partner")
		second(observe.DeliverDoneInfo{})
		want("", "billing")
		last(observe.DeliverDoneInfo{})
		want("")
		for _, name := range []string{"partner", "billing: OrderPlaced", "partner"} {
			hooks.Paused(observe.PausedInfo{Destination: name, Paused: true})
		}
		if got := p.Report().Paused; !slices.Equal(got, []string{"billing: OrderPlaced", "partner"}) {
			t.Errorf("unavailable are %v", got)
		}
		hooks.Paused(observe.PausedInfo{Destination: "partner", Paused: false})
		if got := p.Report().Paused; !slices.Equal(got, []string{"billing: OrderPlaced"}) {
			t.Errorf("unavailable are %v", got)
		}
	})
}
