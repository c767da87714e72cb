package daemon

import (
	"context"
	"errors"
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
