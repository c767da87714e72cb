package testserver_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// A test asks for a server and opens it with whatever driver it tests. Without
// a server the call does not return: the test is skipped, or fails under
// "make test".
func Example() {
	test := func(t *testing.T) {
		dsn := testserver.Postgres(t)
		t.Log("connect to", dsn)
	}
	fmt.Printf("%T, server required: %t\n", test, os.Getenv("NOT_SET") != "")
	// Output: func(*testing.T), server required: false
}
