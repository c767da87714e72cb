//go:build linux || darwin

package manage_test

import (
	"fmt"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver/manage"
)

func ExampleCheckNames() {
	fmt.Println(manage.CheckNames([]string{"postgres"}))
	problem, _, _ := strings.Cut(manage.CheckNames([]string{"oracle"}).Error(), ":")
	fmt.Println(problem)
	// Output:
	// <nil>
	// no server is called "oracle"
}
