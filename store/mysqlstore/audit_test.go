package mysqlstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/internal/testaudit"
)

func TestAuditCommitsWithTheChange(t *testing.T) {
	onBoth(t, func(t *testing.T) {
		s, db := openStore(t, nil)
		testaudit.CommitsTogether(t, s, func() { exec(t, db, "DROP TABLE waybill_audit") })
	})
}
