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
		hooks.Lanes(0, 4)
		hooks.QueueDepths(0, 0)
		want("") // other nodes own the lanes
		pass()
		want("no renewal of the lease")
		hooks.Lanes(4, 4)
		hooks.QueueDepths(0, 0)
		want("not been read yet") // a heartbeat is no progress for an owner of lanes
		hooks.Read("page", 0, 0, nil)
		want("")
		pass()
		hooks.Read("page", 0, 0, errors.New("the database is away"))
		hooks.QueueDepths(0, 0)
		want("no successful read of the tables")
		hooks.Read("page", 0, 0, nil)
		_, done := hooks.Deliver(context.Background(), nil)
		pass()
		hooks.Read("page", 0, 0, nil)
		want("a call of the sink takes longer")
		done(nil)
		want("")
	})
}
