//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// mysqlNode is a member of a replication group of MySQL servers with a single
// primary.
type mysqlNode struct {
	mysql
	number int
	group  []int // the ports at which all members listen for each other
}

func (n mysqlNode) name() string { return fmt.Sprintf("%s-%d", testserver.MySQLName, n.number) }

func (n mysqlNode) start(at place, ports []int) command {
	c := n.mysql.start(at, ports)
	var seeds []string
	for _, port := range n.group {
		seeds = append(seeds, fmt.Sprintf("127.0.0.1:%d", port))
	}
	c.argv = append(slices.Clone(c.argv),
		"--server-id="+strconv.Itoa(n.number),
		"--log-bin=binlog",
		"--gtid-mode=ON",
		"--enforce-gtid-consistency=ON",
		"--report-host=127.0.0.1",
		"--innodb-buffer-pool-size=64M",
		"--plugin-load-add=group_replication.so",
		"--loose-group-replication-group-name=7c3f0d5e-5d0b-4f0c-9a42-5f0d9f3a6b11",
		"--loose-group-replication-local-address="+seeds[n.number-1],
		"--loose-group-replication-group-seeds="+strings.Join(seeds, ","),
		"--loose-group-replication-start-on-boot=OFF",
		"--loose-group-replication-recovery-get-public-key=ON",
		"--loose-group-replication-single-primary-mode=ON",
		"--loose-group-replication-consistency=BEFORE_ON_PRIMARY_FAILOVER",
		"--loose-group-replication-exit-state-action=READ_ONLY",
		"--loose-group-replication-member-expel-timeout=0",
	)
	return c
}

// query runs statements on a member, and returns the values of their rows.
func (n mysqlNode) query(ctx context.Context, s Server, statements string) (string, error) {
	argv := append(n.debs().command("usr/bin/mysql"), "--no-defaults", "--host=127.0.0.1", "--port="+strconv.Itoa(s.Port),
		"--user="+login, "--password="+login, "--connect-timeout=2", "--batch", "--skip-column-names", "--execute="+statements)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "Using a password on the command line") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	text := strings.Join(lines, "\n")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return text, nil
}

const (
	memberState = "SELECT MEMBER_STATE FROM performance_schema.replication_group_members WHERE MEMBER_ID = @@server_uuid"
	// A member that was expelled joins again by itself, and needs the login.
	recoverAs = "CHANGE REPLICATION SOURCE TO SOURCE_USER = '" + login + "', SOURCE_PASSWORD = '" + login +
		"' FOR CHANNEL 'group_replication_recovery'; "
	joinGroup  = "STOP GROUP_REPLICATION; " + recoverAs + "START GROUP_REPLICATION"
	foundGroup = recoverAs + "SET GLOBAL group_replication_bootstrap_group = ON; START GROUP_REPLICATION; SET GLOBAL group_replication_bootstrap_group = OFF"
)

// whole implements [node]: the member is in the group again. A member that has
// left the group, or was expelled, joins it.
func (n mysqlNode) whole(ctx context.Context, s Server) error {
	state, err := n.query(ctx, s, memberState)
	if err != nil || state == "ONLINE" {
		return err
	}
	if state == "RECOVERING" {
		return fmt.Errorf("%s is recovering", s.Name)
	}
	if _, err := n.query(ctx, s, joinGroup); err != nil {
		return err
	}
	return fmt.Errorf("%s was %s, and joins", s.Name, state)
}

// RunMySQLGroup starts a replication group of n MySQL servers, of which one is
// the primary.
func (h *Home) RunMySQLGroup(ctx context.Context, n int) (*Cluster, error) {
	if err := (mysql{}).fetch(ctx, h); err != nil {
		return nil, err
	}
	group, err := freePorts(ctx, n)
	if err != nil {
		return nil, err
	}
	return h.runCluster(ctx, func(*Instance) []engine {
		var nodes []engine
		for i := range n {
			nodes = append(nodes, &mysqlFirst{mysqlNode: mysqlNode{number: i + 1, group: group}, founded: i > 0})
		}
		return nodes
	})
}

// mysqlFirst is a member that founds the group if no other has.
type mysqlFirst struct {
	mysqlNode
	founded bool
}

// whole implements [node].
func (f *mysqlFirst) whole(ctx context.Context, s Server) error {
	if f.founded {
		return f.mysqlNode.whole(ctx, s)
	}
	_, err := f.query(ctx, s, foundGroup)
	if err == nil {
		f.founded = true
	}
	return err
}
