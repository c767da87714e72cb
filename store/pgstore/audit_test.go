package pgstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/testaudit"
)

func TestAuditCommitsWithTheChange(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	testaudit.CommitsTogether(t, db, func() {
		if _, err := pool.Exec(t.Context(), `DROP TABLE "`+schema+`".waybill_audit`); err != nil {
			t.Fatal(err)
		}
	})
}
