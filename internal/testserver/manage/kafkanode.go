//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// kafkaNode is a broker and controller of a cluster in which every node is
// both, and every topic has three replicas.
type kafkaNode struct {
	kafka
	number      int
	controllers []int // the ports at which all nodes listen as controllers
}

func (n kafkaNode) name() string { return fmt.Sprintf("%s-%d", testserver.KafkaName, n.number) }
func (kafkaNode) env() string    { return "" }

// ports: the broker's.
func (kafkaNode) ports() int { return 1 }

// recipe does not contain the real ports, which differ each time and would
// change the template.
func (n kafkaNode) recipe(data string) []step {
	n.controllers = []int{2, 3, 4}
	return n.format(data, n.properties(data, 1))
}

// properties returns the settings of a cluster that loses no confirmed message
// with one of its nodes. A node that does not answer loses its partitions after
// three seconds.
func (n kafkaNode) properties(data string, port int) string {
	controller := n.controllers[n.number-1]
	var voters []string
	for i, p := range n.controllers {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, p))
	}
	return strings.Join([]string{
		"process.roles=broker,controller",
		fmt.Sprintf("node.id=%d", n.number),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controller),
		kafkaSettings(data, port, controller),
		// These override those before.
		"controller.quorum.voters=" + strings.Join(voters, ","),
		"default.replication.factor=3",
		"min.insync.replicas=2",
		"offsets.topic.replication.factor=3",
		"transaction.state.log.replication.factor=3",
		"transaction.state.log.min.isr=2",
		"replica.lag.time.max.ms=5000",
		"",
	}, "\n")
}

func (n kafkaNode) start(at place, ports []int) command {
	config := filepath.Join(at.dir, "server.properties")
	return command{
		argv:  n.jars().java(kafkaHeap, []string{ownTemp(at)}, "kafka.Kafka", config),
		files: map[string]string{config: n.properties(at.data, ports[0])},
	}
}

// whole implements [node]: the node serves clients. Clients see whether its
// replicas have what they missed.
func (kafkaNode) whole(ctx context.Context, s Server) error { return probeKafka(ctx, s.Port) }

// RunKafka starts a cluster of three Kafka servers, each of which is broker and
// controller.
func (h *Home) RunKafka(ctx context.Context) (*Cluster, error) {
	if err := h.install(ctx, kafka{}.programs(), false); err != nil {
		return nil, err
	}
	if err := (kafka{}).fetch(ctx, h); err != nil {
		return nil, err
	}
	const size = 3
	controllers, err := freePorts(ctx, size)
	if err != nil {
		return nil, err
	}
	return h.runCluster(ctx, func(*Instance) []engine {
		var all []engine
		for i := range size {
			all = append(all, kafkaNode{number: i + 1, controllers: controllers})
		}
		return all
	})
}
