//go:build linux || darwin

package private_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// A test of a client whose server dies.
func Example() {
	_ = func(t *testing.T) {
		server := private.Start(t, testserver.RedisName)
		t.Log("connect to", server.DSN)
		if err := server.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log("calls fail")
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log("calls succeed again")
	}
	// Output:
}
