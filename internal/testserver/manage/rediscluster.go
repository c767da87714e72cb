//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// redisClusterNode is a server of a Redis Cluster.
type redisClusterNode struct {
	redis
	number   int
	replicas int // of each primary
}

func (n redisClusterNode) name() string { return fmt.Sprintf("redis-%d", n.number) }
func (redisClusterNode) env() string    { return "" }

// ports: clients, and the other nodes.
func (redisClusterNode) ports() int { return 2 }

// start: a primary that does not answer for two seconds is replaced. Replicas
// stay with their primary's slots, also if another primary has none.
func (n redisClusterNode) start(at place, ports []int) command {
	c := n.redis.start(at, ports)
	c.argv = append(c.argv, "--repl-diskless-sync-delay", "0", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
		"--cluster-allow-replica-migration", "no", "--cluster-port", strconv.Itoa(ports[1]), "--cluster-config-file", filepath.Join(at.data, "nodes.conf"))
	return c
}

// whole implements [node]: the server knows that all slots are served, a
// primary has all its replicas, and a replica receives its primary's writes.
func (n redisClusterNode) whole(ctx context.Context, s Server) error {
	slots, err := redisState(ctx, s.Port, "CLUSTER INFO")
	if err != nil {
		return err
	}
	if slots["cluster_state"] != "ok" {
		return fmt.Errorf("the state of the cluster is %q", slots["cluster_state"])
	}
	state, err := redisState(ctx, s.Port, "INFO replication")
	if err != nil {
		return err
	}
	if state["role"] == "slave" {
		if state["master_link_status"] != "up" {
			return errors.New("a replica without its primary")
		}
		return nil
	}
	for i := range n.replicas {
		if replica := state[fmt.Sprintf("slave%d", i)]; !strings.Contains(replica, "state=online") {
			return fmt.Errorf("replica %d is %q", i, replica)
		}
	}
	return nil
}

// RunRedisCluster starts a Redis Cluster: primaries, and replicas of each.
func (h *Home) RunRedisCluster(ctx context.Context, primaries, replicas int) (*Cluster, error) {
	if err := h.install(ctx, redis{}.programs(), false); err != nil {
		return nil, err
	}
	shell, ok := redis{}.programs()[1].find()
	if !ok {
		return nil, errors.New("redis-cli is not installed: install redis-tools")
	}
	return h.runCluster(ctx, func(*Instance) []engine {
		var all []engine
		for i := range primaries * (1 + replicas) {
			all = append(all, redisClusterNode{number: i + 1, replicas: replicas})
		}
		return all
	}, func(in *Instance) []engine {
		joinRedis(ctx, in, shell, replicas)
		return nil
	})
}

// joinRedis makes a cluster of the servers. A failure shows in the state of the
// nodes.
func joinRedis(ctx context.Context, in *Instance, shell string, replicas int) {
	argv := []string{"--cluster", "create"}
	for _, s := range in.Servers {
		argv = append(argv, fmt.Sprintf("127.0.0.1:%d", s.Port))
	}
	argv = append(argv, "--cluster-replicas", strconv.Itoa(replicas), "--cluster-yes")
	if out, err := exec.CommandContext(ctx, shell, argv...).CombinedOutput(); err != nil {
		in.home.say("redis-cli: %v:\n%s", err, tail(string(out), 20))
	}
}
