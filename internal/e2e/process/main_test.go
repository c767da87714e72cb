//go:build linux || darwin

package process_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/waybillhq/waybill/internal/e2e/process/child"
)

// nodeVariable makes the test binary a node: it holds the node's spec.
const nodeVariable = "WAYBILL_PROCESS_NODE"

// consumerVariable makes the test binary a consumer of a group.
const consumerVariable = "WAYBILL_PROCESS_CONSUMER"

// keyedVariable makes the test binary a process that runs requests under
// idempotency keys.
const keyedVariable = "WAYBILL_PROCESS_KEYED"

func TestMain(m *testing.M) {
	run, text := runNode, os.Getenv(nodeVariable)
	if text == "" {
		run, text = runConsumer, os.Getenv(consumerVariable)
	}
	if text == "" {
		run, text = runKeyed, os.Getenv(keyedVariable)
	}
	if text == "" {
		run, text = runWeb, os.Getenv(webVariable)
	}
	if text == "" {
		os.Exit(m.Run())
	}
	child.Bind()
	if err := run(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
