package relaytest

import (
	"fmt"
	"sync/atomic"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// tenantChecks are the checks of tenants that share an outbox.
func tenantChecks[T any]() []check[T] {
	return []check[T]{
		{name: "quiet_tenants", run: quietTenants[T]},
	}
}

// quietTenants: events of quiet tenants, with and without aggregates, do not
// wait behind the backlog of another tenant. They are written when some of that
// backlog has been delivered; two reads of other tenants later, only the events
// that the sink already has are delivered before them. An event without a
// tenant is one of a quiet tenant, too.
func quietTenants[T any](b *env[T]) {
	const backlog, before = 3000, 300
	cfg := b.quick()
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize = 1, 100, 50
	var reads atomic.Int64
	cfg.Observe = observe.Hooks{Read: func(info observe.ReadInfo) {
		if info.Kind == "others" {
			reads.Add(1)
		}
	}}
	var evs []waybill.Event
	for i := range backlog {
		ev := event(fmt.Sprint("a", i%500), i)
		ev.TenantID = "loud"
		evs = append(evs, ev)
	}
	b.write(evs...)
	g := newGate()
	g.let(before)
	b.start(g.sink(), cfg)
	b.await("some are delivered", func() bool { return g.count() > before })
	var quiet []waybill.Event
	for i, tenant := range []string{"quiet", "", "other", "quiet", "quiet"} {
		ev := event([]string{"q0", "", "o0", "q0", ""}[i], backlog+i)
		ev.TenantID = tenant
		quiet = append(quiet, ev)
	}
	b.write(quiet...)
	evs = append(evs, quiet...)
	began := reads.Load()
	b.await("reads of other tenants", func() bool { return reads.Load() >= began+3 })
	done := g.count()
	g.let(backlog)
	b.awaitEmpty()
	b.wantOnce(g.recorder, evs)
	b.wantOrder(g.all())
	// The tenants take turns: three of them have one event, and quiet has two
	// after that, behind two more of the others.
	loud := 0
	for _, d := range g.all()[done:] {
		if d.TenantID == "loud" {
			loud++
		} else if limit := cfg.BatchSize + 4; loud > limit {
			b.Errorf("event %s of tenant %q came after %d others, want at most %d of %d", d.ID, d.TenantID, loud, limit, backlog-before)
		}
	}
}
