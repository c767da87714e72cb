package testserver_test

import (
	"fmt"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// A test asks for a server and opens it with the driver under test. Without a
// server the call does not return: the test is skipped, or fails under "make
// test".
func ExamplePostgres() {
	_ = func(t *testing.T) {
		dsn := testserver.Postgres(t)
		t.Log("connect to", dsn)
	}
	fmt.Println("the address is in", testserver.EnvPostgres)
	// Output: the address is in WAYBILL_TEST_POSTGRES
}
