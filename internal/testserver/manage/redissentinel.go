//go:build linux || darwin

package manage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
)

// redisNode is a Redis server that sentinels watch. It starts as the primary,
// or as a replica.
type redisNode struct {
	redis
	number  int
	primary int // the port of the first primary, of which all others are replicas
}

func (n redisNode) name() string { return fmt.Sprintf("redis-%d", n.number) }
func (redisNode) env() string    { return "" }

func (n redisNode) start(at place, ports []int) command {
	c := n.redis.start(at, ports)
	c.argv = append(c.argv, "--repl-diskless-sync-delay", "0")
	if n.primary != 0 {
		c.argv = append(c.argv, "--replicaof", "127.0.0.1", strconv.Itoa(n.primary))
	}
	return c
}

// whole implements [node]. The sentinels know more.
func (redisNode) whole(ctx context.Context, s Server) error {
	_, err := probeRedis(ctx, s.Port)
	return err
}

// RedisPrimary is the name under which sentinels watch the primary.
const RedisPrimary = "waybill"

// sentinel watches Redis servers, and promotes a replica of a primary that does
// not answer.
type sentinel struct {
	redis
	number  int
	servers []Server // the first is the first primary
	size    int      // the number of sentinels
}

func (n sentinel) name() string { return fmt.Sprintf("sentinel-%d", n.number) }
func (sentinel) env() string    { return "" }

// A primary that does not answer for two seconds is replaced.
const sentinelConfig = `bind 127.0.0.1
port %d
dir %q
daemonize no
sentinel monitor %[3]s 127.0.0.1 %[4]d %[5]d
sentinel down-after-milliseconds %[3]s 2000
sentinel failover-timeout %[3]s 10000
`

func (n sentinel) start(at place, ports []int) command {
	config := filepath.Join(at.dir, "sentinel.conf")
	return command{
		argv:  []string{n.server(), config, "--sentinel"},
		files: map[string]string{config: fmt.Sprintf(sentinelConfig, ports[0], at.data, RedisPrimary, n.servers[0].Port, n.size/2+1)},
	}
}

// ready is that of a server, without QUIT, which sentinels do not know.
func (sentinel) ready(ctx context.Context, r running) bool {
	state, err := redisState(ctx, r.ports[0], "INFO server")
	return err == nil && state["process_id"] == strconv.Itoa(r.pid)
}

// whole implements [node]: the sentinel knows a primary, of which all other
// servers are replicas that receive its writes.
func (n sentinel) whole(ctx context.Context, s Server) error {
	state, err := redisState(ctx, s.Port, "INFO sentinel")
	if err != nil {
		return err
	}
	// name=waybill,status=ok,address=127.0.0.1:6379,slaves=2,sentinels=3
	line := state["master0"]
	_, address, _ := strings.Cut(line, "address=127.0.0.1:")
	port, _, _ := strings.Cut(address, ",")
	want := fmt.Sprintf("name=%s,status=ok,address=127.0.0.1:%s,slaves=%d,sentinels=%d", RedisPrimary, port, len(n.servers)-1, n.size)
	if line != want {
		return fmt.Errorf("the sentinel's state is %q, want %q", line, want)
	}
	for _, server := range n.servers {
		state, err := redisState(ctx, server.Port, "INFO replication")
		if err != nil {
			return err
		}
		if strconv.Itoa(server.Port) == port {
			err = n.leads(state)
		} else {
			err = n.follows(state, port)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", server.Name, err)
		}
	}
	return nil
}

func (n sentinel) leads(state map[string]string) error {
	if state["role"] != "master" {
		return errors.New("not the primary")
	}
	for i := range len(n.servers) - 1 {
		if replica := state[fmt.Sprintf("slave%d", i)]; !strings.Contains(replica, "state=online") {
			return fmt.Errorf("replica %d is %q", i, replica)
		}
	}
	return nil
}

func (sentinel) follows(state map[string]string, port string) error {
	if state["role"] != "slave" || state["master_port"] != port || state["master_link_status"] != "up" {
		return fmt.Errorf("%s of port %s, link %s", state["role"], state["master_port"], state["master_link_status"])
	}
	return nil
}

// redisState returns what a command such as INFO tells about a server.
func redisState(ctx context.Context, port int, command string) (map[string]string, error) {
	conn, err := dialProbe(ctx, port)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return nil, err
	}
	in := bufio.NewReader(conn)
	head, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	size, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(head), "$"))
	if err != nil {
		return nil, fmt.Errorf("the answer is %q", head)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		out[name] = value
	}
	return out, nil
}

// RunRedis starts n Redis servers, of which one is the primary, and three
// sentinels. The sentinels are the last servers of the cluster.
func (h *Home) RunRedis(ctx context.Context, n int) (*Cluster, error) {
	if err := h.install(ctx, redis{}.programs(), false); err != nil {
		return nil, err
	}
	const sentinels = 3
	return h.runCluster(ctx, func(*Instance) []engine { return []engine{redisNode{number: 1}} },
		func(in *Instance) []engine {
			var all []engine
			for i := 2; i <= n; i++ {
				all = append(all, redisNode{number: i, primary: in.Servers[0].Port})
			}
			return all
		},
		func(in *Instance) []engine {
			var all []engine
			for i := range sentinels {
				all = append(all, sentinel{number: i + 1, servers: in.Servers[:n:n], size: sentinels})
			}
			return all
		})
}
