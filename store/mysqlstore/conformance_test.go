package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/storetest"
)

var features = storetest.Features{
	PlainSQL: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
}

func TestConformance(t *testing.T) {
	testserver.MySQL(t)
	storetest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return instance(t, nil, nil) },
	})
}

// The driver puts arguments into the text of the statement: everything must survive that, too.
func TestConformanceInterpolated(t *testing.T) {
	testserver.MySQL(t)
	storetest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] {
			return instance(t, func(c *mysql.Config) { c.InterpolateParams, c.ParseTime = true, false }, nil)
		},
	})
}

// Transactions are proven as on MySQL, with a statement of their own.
func TestConformanceAsMySQL(t *testing.T) {
	testserver.MySQL(t)
	storetest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "mysqlstore", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] {
			return instance(t, nil, func(s *mysqlstore.Store) {
				if err := s.PretendMySQL(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		},
	})
}
