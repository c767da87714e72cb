package dashboard_test

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestReportsOfNodes: every screen tells of a destination that a relay node
// reports as down or rate-limited, and of the process of the node.
func TestReportsOfNodes(t *testing.T) {
	s := newShop(t)
	_, _, err := s.to.Add(t.Context(), "shipping")
	s.must(err)
	_, _, err = s.to.Add(t.Context(), "billing")
	s.must(err)
	now := time.Now()
	node, old := store.Node{ID: waybill.NewID(), Relay: "relay"}, store.Node{ID: waybill.NewID(), Relay: "relay"}
	_, err = s.roles.Relay.Heartbeat(t.Context(), old, time.Hour)
	s.must(err)
	report := driver.NodeReport{
		Host: "host-7.example", PID: 4711, Version: "v1.2.3", StartedAt: now.Add(-time.Hour), At: now,
		Troubles: []driver.Trouble{
			{Destination: "shipping", State: driver.TroubleDown, Since: now.Add(-11 * time.Minute), Error: "NO_ROUTE <script>x</script>", NextProbe: now.Add(time.Hour)},
			{Destination: "billing", State: driver.TroubleLimited, Since: now.Add(-2 * time.Minute), Error: "429 Too Many Requests", Rate: 50},
			{Part: "orders", State: driver.TroubleDown, Since: now.Add(-3 * time.Minute), Error: "no leader"},
		},
	}
	node.Report = driver.EncodeNodeReport(&report, time.Hour)
	_, err = s.roles.Relay.Heartbeat(t.Context(), node, time.Hour)
	s.must(err)
	s.open()
	down := []string{"Destination shipping has been down for 11 min: NO_ROUTE &lt;script&gt;x&lt;/script&gt;; the next probe is in ", "s-down"}
	limited := []string{"Destination billing has been rate-limited for 2 min, to 50 events per second and node: 429 Too Many Requests.", "s-limited"}
	has(t, s.page("/destinations"), append(down, limited...)...)
	has(t, s.page("/"), append(down, limited...)...)
	has(t, s.page("/"), "Destination orders has been down for 3 min: no leader; a probe is due.", "waybill destinations probe shipping", "waybill doctor")
	has(t, s.page("/relays"), "host-7.example", "4711", "v1.2.3", "unknown", down[0], limited[0], "Destination orders has been down for 3 min")
	lacks(t, s.page("/relays"), "<script>x")
}
