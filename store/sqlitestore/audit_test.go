package sqlitestore_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/testaudit"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func TestAuditCommitsWithTheChange(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	testaudit.CommitsTogether(t, db, func() {
		if _, err := db.DB().ExecContext(t.Context(), "DROP TABLE waybill_audit"); err != nil {
			t.Fatal(err)
		}
	})
}
