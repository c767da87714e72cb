package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/pgstore"
)

// What is read from the wire says why it failed, as what is scanned does, whatever the protocol.
func TestAReadFromTheWireThatFails(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s, err := pgstore.New(pool, pgstore.Config{Prefix: "never_made_"})
			if err != nil {
				t.Fatal(err)
			}
			id := store.KeyID{Operation: "o", Key: "k"}
			_, _, want := s.FindKey(t.Context(), id)
			if _, there, err := s.PeekKey(t.Context(), id); there || err == nil || err.Error() != want.Error() {
				t.Errorf("a look without tables says %v, and a search %v", err, want)
			}
		})
	}
}
