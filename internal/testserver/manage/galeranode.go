//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// galeraNode is a node of a Galera cluster. It founds the cluster, unless it
// joins.
type galeraNode struct {
	mariadb
	number int
	group  []int // the ports at which all nodes listen for each other
	joins  bool
}

func (n *galeraNode) name() string { return fmt.Sprintf("%s-%d", testserver.MariaDBName, n.number) }
func (*galeraNode) env() string    { return "" }

// ports: clients, and two for the transfer of what a node has missed.
func (*galeraNode) ports() int { return 3 }

// programs: besides the server's, those that transfer its state.
func (n *galeraNode) programs() []program {
	return append(n.mariadb.programs(),
		program{names: []string{"mariadb"}, packages: []string{"mariadb-client"}},
		program{names: []string{"rsync"}, packages: []string{"rsync"}},
		program{names: []string{"ss"}, packages: []string{"iproute2"}})
}

// recoverPosition starts a server at the position of its data. A node that was
// killed does not know it, and would copy all data of another.
const recoverPosition = `at=$("$@" --wsrep-recover 2>&1 | sed -n 's/.*Recovered position: *//p' | tail -n 1)
exec "$@" --wsrep-start-position="$at"`

func (n *galeraNode) start(at place, ports []int) command {
	c := n.mariadb.start(at, ports)
	address := "gcomm://"
	if n.joins {
		var members []string
		for _, port := range n.group {
			members = append(members, fmt.Sprintf("127.0.0.1:%d", port))
		}
		address += strings.Join(members, ",")
	}
	c.argv = append(append([]string{"/bin/sh", "-c", recoverPosition, "sh"}, c.argv...),
		"--server-id="+strconv.Itoa(n.number),
		"--innodb-buffer-pool-size=64M",
		"--wsrep-on=ON",
		"--wsrep-provider="+galera{}.library(),
		"--wsrep-cluster-address="+address,
		"--wsrep-node-address=127.0.0.1",
		"--wsrep-node-name="+n.name(),
		fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d", n.group[n.number-1], ports[1]),
		fmt.Sprintf("--wsrep-sst-receive-address=127.0.0.1:%d", ports[2]),
		"--wsrep-sst-method=rsync",
		// A node answers when it has applied what the cluster has.
		"--wsrep-sync-wait=7",
		"--binlog-format=ROW",
		"--innodb-autoinc-lock-mode=2",
	)
	return c
}

// whole implements [node]: the node has what the cluster has.
func (n *galeraNode) whole(ctx context.Context, s Server) error {
	client, _ := n.programs()[2].find()
	out, err := exec.CommandContext(ctx, client, "--no-defaults", "--host=127.0.0.1", "--port="+strconv.Itoa(s.Port), "--user="+login, "--password="+login,
		"--connect-timeout=2", "--batch", "--skip-column-names", "--execute=SHOW GLOBAL STATUS LIKE 'wsrep%'").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	state := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		state[name] = value
	}
	if state["wsrep_ready"] != "ON" || state["wsrep_cluster_status"] != "Primary" || state["wsrep_local_state_comment"] != "Synced" {
		return fmt.Errorf("the node is %s in a %s cluster", state["wsrep_local_state_comment"], state["wsrep_cluster_status"])
	}
	if size := state["wsrep_cluster_size"]; n.joins && size != strconv.Itoa(len(n.group)) {
		return fmt.Errorf("the cluster has %s nodes", size)
	}
	n.joins = true
	return nil
}

// RunGalera starts a Galera cluster of n MariaDB servers.
func (h *Home) RunGalera(ctx context.Context, n int) (*Cluster, error) {
	if err := h.install(ctx, new(galeraNode).programs(), false); err != nil {
		return nil, err
	}
	group, err := freePorts(ctx, n)
	if err != nil {
		return nil, err
	}
	nodes := func(from, to int) []engine {
		var all []engine
		for i := from; i <= to; i++ {
			all = append(all, &galeraNode{number: i, group: group, joins: i > 1})
		}
		return all
	}
	// The others join the first.
	return h.runCluster(ctx, func(*Instance) []engine { return nodes(1, 1) }, func(*Instance) []engine { return nodes(2, n) })
}
