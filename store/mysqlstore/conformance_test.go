package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/internal/storematrix"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/drivertest"
)

var features = drivertest.Features{
	PlainSQL: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
}

// columnOf returns the store's column in the feature matrix for the server of a
// test.
func columnOf(t *testing.T) string {
	t.Helper()
	if serverOf(t) == testserver.MySQLName {
		return "mysqlstore"
	}
	return "mysqlstore/mariadb"
}

func TestConformance(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T) {
		storematrix.Run(t, drivertest.Harness[*sql.Tx]{
			Name: columnOf(t), Features: features,
			Open: shelve(t).instance,
		})
	})
}

// The driver interpolates arguments into the statement: every value must
// survive that, too. The driver writes the same statements for both servers, so
// one is enough here. make test-stores-full runs the suite on both, with that
// of the relay and the large checks.
func TestConformanceInterpolated(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T) {
		if serverOf(t) == testserver.MySQLName && !testserver.Full() {
			t.Skip("make test-stores-full runs it; TestDataSourceNames and TestAcceptMany interpolate on MySQL, too")
		}
		databases := shelve(t)
		h := drivertest.Harness[*sql.Tx]{
			Name: columnOf(t), Features: features, SkipLarge: !testserver.Full(),
			Open: func(t *testing.T) drivertest.Instance[*sql.Tx] {
				db := databases.open(t, func(c *mysql.Config) { c.InterpolateParams, c.ParseTime = true, false })
				return instanceOf(t, newStore(t, db), db, nil)
			},
		}
		if testserver.Full() {
			storematrix.Run(t, h)
			return
		}
		drivertest.RunOutbox(t, h)
		drivertest.RunInbox(t, h)
		drivertest.RunKeys(t, h)
		drivertest.RunJobs(t, h)
		drivertest.RunAdmin(t, h)
		drivertest.RunBacklogs(t, h)
	})
}
