//go:build linux || darwin

package manage

import (
	"fmt"
	"os"
)

// galera is a MariaDB server that is the only node of a Galera cluster.
type galera struct{ mariadb }

// ports: besides that of clients, one for the group and one for the transfer of
// its state.
func (galera) ports() int { return 3 }

// library returns the path of the provider, which Debian installs with the
// server.
func (g galera) library() string {
	for _, path := range []string{"/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so", "/usr/lib64/galera/libgalera_smm.so"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return "libgalera_smm.so" // the server reports that it is missing
}

func (g galera) start(at place, ports []int) command {
	c := g.mariadb.start(at, ports)
	c.argv = append(c.argv,
		"--wsrep-on=ON",
		"--wsrep-provider="+g.library(),
		"--wsrep-cluster-address=gcomm://",
		"--wsrep-node-address=127.0.0.1",
		fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d", ports[1], ports[2]),
		"--wsrep-sst-method=rsync",
		"--binlog-format=ROW",
		"--innodb-autoinc-lock-mode=2",
	)
	return c
}
