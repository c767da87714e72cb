//go:build linux || darwin

package process_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/waybillhq/waybill/test/process/child"
)

// nodeVariable makes the test binary a node: it holds the node's spec.
const nodeVariable = "WAYBILL_PROCESS_NODE"

func TestMain(m *testing.M) {
	text := os.Getenv(nodeVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	child.Bind()
	if err := runNode(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
