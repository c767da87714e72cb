package httpkey_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestSearchFindsARequest: an operator finds the record of a request by what
// its client says, whatever the routes and the length of the operation.
func TestSearchFindsARequest(t *testing.T) {
	long := "POST /" + strings.Repeat("x", 200)
	for name, c := range map[string]struct {
		cfg    httpkey.Config
		search admin.KeyQuery
	}{
		"route":          {httpkey.Config{}, admin.KeyQuery{Operation: "POST /orders"}},
		"long operation": {httpkey.Config{Operation: func(*http.Request) string { return long }}, admin.KeyQuery{Operation: long}},
		"strict routes":  {httpkey.Config{StrictRoutes: true}, admin.KeyQuery{}},
	} {
		t.Run(name, func(t *testing.T) {
			db, err := memstore.New(memstore.Config{})
			if err != nil {
				t.Fatal(err)
			}
			c.cfg.Scope = callerScope
			b := newEnv(t, setup{cfg: c.cfg, db: db.Driver().Keys})
			b.post(`"k-1"`, "{}", with("Tenant", "acme"), with("Principal", "ann"))
			ops, err := admin.NewKeys(db, admin.Config{})
			if err != nil {
				t.Fatal(err)
			}
			c.search.Tenant, c.search.Principal, c.search.Key = "acme", "ann", "k-1"
			found, err := ops.Search(t.Context(), c.search)
			if err != nil || len(found) != 1 || found[0].Tenant != "acme" || strings.Contains(found[0].Key, "k-1") {
				t.Errorf("found %+v, %v", found, err)
			}
			c.search.Principal = "bob"
			if found, err := ops.Search(t.Context(), c.search); !errors.Is(err, admin.ErrNoKey) {
				t.Errorf("another principal's search found %+v, %v", found, err)
			}
		})
	}
}
