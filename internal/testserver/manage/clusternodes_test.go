//go:build linux || darwin

package manage

import (
	"slices"
	"strings"
	"testing"
)

func TestKafkaNodesKnowEachOther(t *testing.T) {
	a, b := kafkaNode{number: 2, controllers: []int{20001, 20002, 20003}}, kafkaNode{number: 2, controllers: []int{20004, 20005, 20006}}
	if templateName(a, account{}, "1") != templateName(b, account{}, "1") {
		t.Error("the template depends on the ports: each run would make one")
	}
	if c := (kafkaNode{number: 3, controllers: a.controllers}); templateName(a, account{}, "1") == templateName(c, account{}, "1") {
		t.Error("two nodes share a template, and so the identity that is in it")
	}
	for _, text := range a.start(place{}, []int{20009}).files {
		// The last value of a property counts.
		lines := strings.Split(text, "\n")
		slices.Reverse(lines)
		for name, want := range map[string]string{
			"node.id": "2", "min.insync.replicas": "2", "offsets.topic.replication.factor": "3",
			"listeners":                "PLAINTEXT://127.0.0.1:20009,CONTROLLER://127.0.0.1:20002",
			"controller.quorum.voters": "1@127.0.0.1:20001,2@127.0.0.1:20002,3@127.0.0.1:20003",
		} {
			i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, name+"=") })
			if i < 0 || lines[i] != name+"="+want {
				t.Errorf("%s is not %s:\n%s", name, want, text)
			}
		}
	}
}

func TestAGaleraNodeFoundsItsClusterOnce(t *testing.T) {
	group := []int{20001, 20002, 20003}
	address := func(n *galeraNode) string {
		argv := n.start(place{}, []int{20004, 20005, 20006}).argv
		i := slices.IndexFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, "--wsrep-cluster-address=") })
		return strings.TrimPrefix(argv[i], "--wsrep-cluster-address=")
	}
	if got := address(&galeraNode{number: 1, group: group}); got != "gcomm://" {
		t.Errorf("the first node connects to %q", got)
	}
	const all = "gcomm://127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
	if got := address(&galeraNode{number: 1, group: group, joins: true}); got != all {
		t.Errorf("a restarted node connects to %q", got)
	}
}

func TestNATSNodesUseTheirProxies(t *testing.T) {
	n := natsNode{number: 2, routes: []int{20001, 20002, 20003}, via: func(from, to, port int) int { return port + 100*from + 10*to }}
	for _, text := range n.start(place{}, []int{20004, 20005}).files {
		if !strings.Contains(text, "listen: 127.0.0.1:20002, routes: [nats://127.0.0.1:20211, nats://127.0.0.1:20002, nats://127.0.0.1:20233], no_advertise: true") {
			t.Errorf("the configuration is\n%s", text)
		}
	}
}
