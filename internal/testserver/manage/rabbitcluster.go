//go:build linux || darwin

package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
)

// rabbitMapper is the port mapper of a cluster's nodes. It is a server of its
// own: one that a node starts would end with that node.
type rabbitMapper struct{ rabbitmq }

func (rabbitMapper) name() string { return "rabbitmq-mapper" }
func (rabbitMapper) env() string  { return "" }
func (rabbitMapper) ports() int   { return 1 }

func (r rabbitMapper) start(_ place, ports []int) command {
	mapper, _ := r.programs()[1].find()
	return command{argv: []string{mapper, "-port", strconv.Itoa(ports[0]), "-address", "127.0.0.1"}}
}

func (rabbitMapper) ready(ctx context.Context, r running) bool {
	conn, err := dialProbe(ctx, r.ports[0])
	return err == nil && conn.Close() == nil
}

// rabbitNode is a node of a cluster with the management plugin.
type rabbitNode struct {
	rabbitmq
	number int
	size   int // the number of nodes
	mapper int // the port of the port mapper
}

func (n rabbitNode) name() string { return fmt.Sprintf("rabbitmq-%d", n.number) }
func (rabbitNode) env() string    { return "" }

// ports: AMQP, the node's port for other nodes, and management.
func (rabbitNode) ports() int { return 3 }

func (n rabbitNode) start(at place, ports []int) command {
	config := fmt.Sprintf(rabbitConfig, ports[0]) + fmt.Sprintf("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", ports[2]) +
		"cluster_partition_handling = pause_minority\ncluster_formation.peer_discovery_backend = classic_config\n"
	for i := range n.size {
		config += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = rabbitmq-%d@localhost\n", i+1, i+1)
	}
	return command{
		argv: []string{n.server()},
		environ: append(n.environ(at, n.name(), ports[1], n.mapper),
			// A node that hangs is taken for dead after 10 s, not after 60.
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-setcookie waybill -kernel net_ticktime 10"),
		files: map[string]string{
			filepath.Join(at.dir, "rabbitmq.conf"):   config,
			filepath.Join(at.dir, "enabled_plugins"): "[rabbitmq_management].\n",
		},
	}
}

// whole implements [node]: this one serves clients, and sees all nodes. Its
// queues fetch what they lack by themselves.
func (n rabbitNode) whole(ctx context.Context, s Server) error {
	if err := probeAMQP(ctx, s.Port); err != nil {
		return err
	}
	var nodes []struct{ Running bool }
	if err := rabbitGet(ctx, s, "nodes?columns=running", &nodes); err != nil {
		return err
	}
	if len(nodes) != n.size {
		return fmt.Errorf("the cluster has %d nodes", len(nodes))
	}
	for _, other := range nodes {
		if !other.Running {
			return errors.New("a node is not running")
		}
	}
	return nil
}

// RabbitQueue is a queue of a cluster.
type RabbitQueue struct {
	Name, Type string
	// Leader and Members are names of servers.
	Leader  string
	Members []string
}

// RabbitQueues returns the queues that a server of a cluster knows.
func RabbitQueues(ctx context.Context, s Server) ([]RabbitQueue, error) {
	var queues []RabbitQueue
	if err := rabbitGet(ctx, s, "queues?columns=name,type,leader,members", &queues); err != nil {
		return nil, err
	}
	for i := range queues {
		q := &queues[i]
		q.Leader = serverOf(q.Leader)
		for k := range q.Members {
			q.Members[k] = serverOf(q.Members[k])
		}
	}
	return queues, nil
}

// serverOf returns the name of a node's server.
func serverOf(node string) string { return strings.TrimSuffix(node, "@localhost") }

// rabbitGet reads a page of the management plugin.
func rabbitGet(ctx context.Context, s Server, page string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/api/%s", s.Ports[2], page), nil)
	if err != nil {
		return err
	}
	req.SetBasicAuth("guest", "guest")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", page, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// RunRabbitMQ starts a cluster of n RabbitMQ servers.
func (h *Home) RunRabbitMQ(ctx context.Context, n int) (*Cluster, error) {
	if err := h.install(ctx, rabbitmq{}.programs(), false); err != nil {
		return nil, err
	}
	nodes := func(in *Instance, from, to int) []engine {
		var all []engine
		for i := from; i <= to; i++ {
			all = append(all, rabbitNode{number: i, size: n, mapper: in.Servers[0].Port})
		}
		return all
	}
	// The others join the first.
	return h.runCluster(ctx, func(*Instance) []engine { return []engine{rabbitMapper{}} },
		func(in *Instance) []engine { return nodes(in, 1, 1) }, func(in *Instance) []engine { return nodes(in, 2, n) })
}
