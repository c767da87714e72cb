package dashboard_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/dashboard"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// bring sends counts with a heartbeat, of minutes before now.
func (s *shop) bring(rows ...driver.RollupRow) {
	s.t.Helper()
	now := driver.MinuteOf(time.Now())
	for i := range rows {
		rows[i].Minute += now
		rows[i].Source = waybill.NewID()
	}
	report := driver.NodeReport{At: time.Now(), StartedAt: time.Now(), LastMinute: &driver.RollupCounts{Delivered: 31337, Failed: 42, Dead: 7}}
	_, err := s.roles.Relay.Heartbeat(s.t.Context(), store.Node{
		ID: waybill.NewID(), Relay: "relay", Rollup: driver.EncodeRollup(rows), Report: driver.EncodeNodeReport(&report, time.Hour),
	}, time.Hour)
	s.must(err)
}

func counts(minute int64, destination, kind string, delivered, failed, dead int64) driver.RollupRow {
	return driver.RollupRow{
		Minute: minute, Destination: destination, Type: kind, RollupCounts: driver.RollupCounts{Delivered: delivered, Failed: failed, Dead: dead},
	}
}

// TestThroughput: the overview has a chart of the last hour, and a page has
// charts and tables of other times; the page of relays has the last minute.
func TestThroughput(t *testing.T) {
	s := newShop(t)
	s.open()
	has(t, s.page("/"), "<svg", "0 delivered", "at most 0 in 1 min")
	lacks(t, s.page("/throughput"), "Results by time")
	s.bring(counts(-5, "shipping", "OrderPlaced", 1200, 30, 0), counts(-5, "billing", "OrderPaid", 5, 0, 1), counts(-7, "billing", "", 3, 0, 0), counts(-100, "billing", "Old", 10_000, 0, 0))
	s.open()
	for _, path := range []string{"/", "/throughput"} {
		page := s.page(path)
		has(t, page, "1,208 delivered, 30 failed, 1 dead. At most 1,236 results in 1 min.", `role="img"`, "<title id=", "<desc id=",
			"1,208 delivered", "30 failed", "1 dead", "at most 1,236 in 1 min")
		if got := strings.Count(page, `class="ready" x=`); path == "/" && got != 2 {
			t.Errorf("the chart has %d bars of deliveries, want 2", got)
		}
		structure(t, path, page)
	}
	page := s.page("/throughput")
	has(t, page, "Deliveries to billing", "Deliveries to shipping", "Results by destination", "Results by type of event", "OrderPlaced", "OrderPaid", "other types", "Results by time: steps of 1 min", ">1,205<")
	lacks(t, page, "Old")
	page = s.page("/throughput?period=12h&destination=billing")
	has(t, page, "Old", "10,008 delivered", "steps of 5 min")
	lacks(t, page, "OrderPlaced", "Deliveries to")
	has(t, s.page("/throughput?period=14d&type=Old"), "10,000 delivered", "steps of 1 h")
	if a := s.get("/throughput?period=1y"); a.status != http.StatusBadRequest {
		t.Errorf("an unknown period: status %d", a.status)
	}
	has(t, s.page("/relays"), "31,337", ">42<", ">7<")
	s.bring(counts(-5, "<script>x</script>", "<img src=x>", 1, 0, 0))
	s.open()
	lacks(t, s.page("/throughput"), "<script>x", "<img")
}

// TestThroughputWithoutCounts: a store without counts has no chart.
func TestThroughputWithoutCounts(t *testing.T) {
	s := newShop(t)
	roles := s.roles
	roles.Rollups = nil
	ops, err := admin.NewOutbox(roles, admin.Config{})
	s.must(err)
	s.cfg = dashboard.Config{Outbox: ops, Logger: s.cfg.Logger}
	s.open()
	lacks(t, s.page("/"), "Deliveries of the last hour")
	has(t, s.page("/throughput"), "keeps no counts of deliveries")
}

// TestProgressOfGroups: the page of consumer groups has also those without
// failures, with their progress.
func TestProgressOfGroups(t *testing.T) {
	s := newShop(t)
	s.open()
	has(t, s.page("/groups"), "No consumer group of this database has a record.")
	first, second := event("OrderPlaced", "1"), event("OrderPlaced", "2")
	s.write(first, second)
	s.settle(s.roles.Relay, func(row store.Row, out *driver.Settlement) {
		out.History, out.Done = true, append(out.Done, driver.Result{Lane: row.Lane, ID: row.ID, Seq: row.Seq})
	})
	box, err := outbox.New(s.db, outbox.Config{})
	s.must(err)
	s.must(box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
		_, err := s.roles.Inbox.Accept(ctx, tx, waybill.NewID(), []store.InboxEntry{{Group: "inventory", Key: second.ID, Event: second.ID, Type: second.Type}})
		return err
	}))
	has(t, s.page("/groups"), ">inventory<", "Last applied", "<time datetime=", ">0.0<", ">none<")
}
