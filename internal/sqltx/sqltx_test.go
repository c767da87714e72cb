package sqltx_test

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
)

func ExampleDone() {
	err := sqltx.Done(fmt.Errorf("insert: %w", sql.ErrTxDone))
	fmt.Println(errors.Is(err, waybill.ErrTxDone), errors.Is(err, sql.ErrTxDone))
	// Output: true true
}
