package pgstore_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// A read from the wire reports why it failed, as a scanned read does, in every
// protocol.
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
			_, _, want := s.Driver().KeyRecords.FindKey(t.Context(), id)
			if _, there, err := s.Driver().Keys.(driver.KeyPeeker).PeekKey(t.Context(), id); there || err == nil || err.Error() != want.Error() {
				t.Errorf("PeekKey without tables: %v, FindKey: %v", err, want)
			}
		})
	}
}

// An answer is a copy: later reads of the connection do not change it.
func TestAnAnswerFromTheWireStays(t *testing.T) {
	s, _ := openStore(t, openPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 }))
	keys, err := idempotency.New(s, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(name string) string {
		res, err := idempotency.Do(t.Context(), keys, keyRequest(name), func(context.Context) (string, error) { return strings.Repeat(name, 300), nil })
		if err != nil {
			t.Fatal(err)
		}
		return res.Value
	}
	look := func(name string) []byte {
		req := keyRequest(name)
		rec, there, err := s.Driver().Keys.(driver.KeyPeeker).PeekKey(t.Context(), store.KeyID{Tenant: req.TenantID, Operation: req.Operation, Key: req.Key})
		if err != nil || !there {
			t.Fatalf("no answer of %s: %v", name, err)
		}
		return rec.Result
	}
	want := `"` + answer("a") + `"`
	answer("b")
	got := look("a")
	for range 100 { // the driver reuses its buffers
		look("b")
	}
	if string(got) != want {
		t.Errorf("it became %.20s…", got)
	}
}
