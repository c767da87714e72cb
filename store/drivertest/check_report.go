package drivertest

import (
	"context"
	"strings"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// reportChecks check the reports of nodes.
func reportChecks[T any]() []check[T] {
	return []check[T]{{row: "node_reports", name: "kept with the node", run: keepsReports[T]}}
}

// keepsReports: each node has the report of its last heartbeat, or none, and
// the end of its lease.
func keepsReports[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	wantReport := func(when string, n store.Node, want string) {
		t.Helper()
		b.wantMembers(ctx, t)
		for _, got := range b.stats(ctx, t).Nodes {
			if got.ID == n.ID && got.Report != want {
				t.Errorf("%s, the report is %d bytes: %.200q, want %d bytes: %.200q", when, len(got.Report), got.Report, len(want), want)
			}
		}
	}
	wantReport("without a report", one, "")
	sent := one
	sent.Report = `{"host":"a","error":"NO_ROUTE \"x\" <b>\\ 'it''s' %s` + "\n\t\u2028\u732b\U0001f408\\u0000" + `"}`
	before := b.now(ctx, t)
	for _, n := range b.beat(ctx, t, b.DB.Relay, sent, time.Hour).Nodes {
		if n.Report != "" || !n.Expires.IsZero() {
			t.Errorf("a heartbeat returned the report %q of node %s, until %v", n.Report, n.ID, n.Expires)
		}
	}
	after := b.now(ctx, t)
	wantReport("after a heartbeat with one", one, sent.Report)
	for _, n := range b.stats(ctx, t).Nodes {
		if end := n.Expires.Add(-time.Hour); n.ID == one.ID && (end.Before(before.Add(-time.Millisecond)) || end.After(after.Add(time.Millisecond)) || !inMicrosUTC(n.Expires)) {
			t.Errorf("a lease of an hour that began between %v and %v ends at %v", before, after, n.Expires)
		}
	}
	wantReport("of the other node", two, "")
	two.Report = strings.Repeat("\U0001f408", driver.MaxNodeReport/4)
	b.beat(ctx, t, b.second().Relay, two, defaultLease)
	wantReport("of the other node, with the longest one", two, two.Report)
	wantReport("after a heartbeat of the other node", one, sent.Report)
	sent.Report = `{}`
	b.beat(ctx, t, b.DB.Relay, sent, defaultLease)
	wantReport("after a heartbeat with another one", one, `{}`)
	b.beat(ctx, t, b.DB.Relay, one, defaultLease)
	wantReport("after a heartbeat without one", one, "")
}
