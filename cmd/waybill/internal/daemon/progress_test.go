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

// TestProgress (failure mode 46): a relay gets on while it reads and its sink answers, or, without lanes, while its lease is renewed.
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
		want("not read the tables yet")
		hooks.Lanes(0, 4)
		hooks.QueueDepths(0, 0)
		want("") // others have the lanes
		pass()
		want("could not renew its lease")
		hooks.Lanes(4, 4)
		hooks.QueueDepths(0, 0)
		want("not read the tables yet") // a heartbeat is not progress for who has lanes
		hooks.Read("page", 0, 0, nil)
		want("")
		pass()
		hooks.Read("page", 0, 0, errors.New("the database is away"))
		hooks.QueueDepths(0, 0)
		want("could not read the tables")
		hooks.Read("page", 0, 0, nil)
		_, done := hooks.Deliver(context.Background(), nil)
		pass()
		hooks.Read("page", 0, 0, nil)
		want("a call of the sink takes longer")
		done(nil)
		want("")
	})
}
