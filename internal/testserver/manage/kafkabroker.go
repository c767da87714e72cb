//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// kafkaBroker is a node that joins a [kafka], which is the cluster's only
// controller.
type kafkaBroker struct {
	kafka
	node       int
	controller int // its port
}

func (b kafkaBroker) name() string { return fmt.Sprintf("%s-%d", testserver.KafkaName, b.node) }

// ports: the broker's.
func (kafkaBroker) ports() int { return 1 }

// recipe does not contain the controller's real port, which differs each time
// and would change the template.
func (b kafkaBroker) recipe(data string) []step {
	return b.format(data, b.properties(data, 1, 2))
}

func (b kafkaBroker) properties(data string, port, controller int) string {
	return strings.Join([]string{
		"process.roles=broker",
		fmt.Sprintf("node.id=%d", b.node),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d", port),
		kafkaSettings(data, port, controller),
	}, "\n")
}

func (b kafkaBroker) start(at place, ports []int) command {
	config := filepath.Join(at.dir, "server.properties")
	return command{
		argv:  b.jars().java(kafkaHeap, []string{ownTemp(at)}, "kafka.Kafka", config),
		files: map[string]string{config: b.properties(at.data, ports[0], b.controller)},
	}
}

// AddBrokers starts n more Kafka brokers, which join the instance's own broker
// and are added to its servers.
func (in *Instance) AddBrokers(ctx context.Context, n int) error {
	i := slices.IndexFunc(in.Servers, func(s Server) bool { return s.Name == testserver.KafkaName })
	if i < 0 {
		return errors.New("the instance has no kafka server to join")
	}
	var more []engine
	for node := range n {
		more = append(more, kafkaBroker{node: 2 + node, controller: in.Servers[i].Ports[1]})
	}
	return in.start(ctx, more)
}
