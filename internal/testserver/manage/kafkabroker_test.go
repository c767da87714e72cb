//go:build linux || darwin

package manage

import (
	"strings"
	"testing"
)

func TestBrokersJoinTheKafkaOfTheirInstance(t *testing.T) {
	a, b := kafkaBroker{node: 2, controller: 20001}, kafkaBroker{node: 2, controller: 20002}
	if templateName(a, account{}, "1") != templateName(b, account{}, "1") {
		t.Error("the template depends on the controller's port: each run would make one")
	}
	if c := (kafkaBroker{node: 3, controller: 20001}); templateName(a, account{}, "1") == templateName(c, account{}, "1") {
		t.Error("two nodes share a template, and so the identity that is in it")
	}
	for _, text := range a.start(place{}, []int{20003}).files {
		for _, want := range []string{"node.id=2\n", "controller.quorum.voters=1@127.0.0.1:20001\n", "listeners=PLAINTEXT://127.0.0.1:20003\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("the properties lack %q:\n%s", want, text)
			}
		}
	}
	if err := new(Instance).AddBrokers(t.Context(), 1); err == nil {
		t.Error("a broker was added to nothing")
	}
}
