//go:build linux || darwin

package manage_test

import (
	"fmt"

	"github.com/waybillhq/waybill/internal/testserver/manage"
)

func ExampleCheckNames() {
	fmt.Println(manage.CheckNames([]string{"postgres"}))
	fmt.Println(manage.CheckNames([]string{"oracle"}))
	// Output:
	// <nil>
	// no server is called "oracle": the names are postgres, mariadb, redis, rabbitmq, kafka, pulsar
}
