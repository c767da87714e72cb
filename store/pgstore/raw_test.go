package pgstore_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/idempotency"
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

// An answer is its reader's own: what the connection reads next does not change it.
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
		rec, there, err := s.PeekKey(t.Context(), store.KeyID{Tenant: req.TenantID, Operation: req.Operation, Key: req.Key})
		if err != nil || !there {
			t.Fatalf("no answer of %s: %v", name, err)
		}
		return rec.Result
	}
	want := `"` + answer("a") + `"`
	answer("b")
	got := look("a")
	for range 100 { // the driver's buffers come round
		look("b")
	}
	if string(got) != want {
		t.Errorf("it became %.20s…", got)
	}
}
