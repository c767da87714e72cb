//go:build unix

package clusters_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestGaleraKilled: a proxy sends all clients to one node of a Galera cluster,
// that node is killed, and the proxy sends them to another. Every promise is
// kept.
func TestGaleraKilled(t *testing.T) {
	failures(t)
	runGalera(t, false)
}

// TestGaleraFrozen: a proxy sends all clients to one node of a Galera cluster,
// that node hangs until the cluster has expelled it, and joins again. Every
// promise is kept.
func TestGaleraFrozen(t *testing.T) {
	failures(t)
	runGalera(t, true)
}

func runGalera(t *testing.T, frozen bool) {
	t.Helper()
	runGroup(t, &group{
		Cluster: private.GaleraCluster(t, 3), frozen: frozen, oneNode: true,
		serves: `SELECT COUNT(*) = 3 FROM information_schema.global_status WHERE (variable_name, variable_value) IN
 (('WSREP_READY', 'ON'), ('WSREP_CLUSTER_STATUS', 'Primary'), ('WSREP_LOCAL_STATE_COMMENT', 'Synced'))`,
		size: "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'WSREP_CLUSTER_SIZE'",
	})
}
