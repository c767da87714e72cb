package httpkey_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

const benchBody = `{"items":[{"sku":"A-1","quantity":2,"price":19.90},{"sku":"B-7","quantity":1,"price":5}],"customer":"cus_1"}`

// The cost of the middleware, over a store that costs next to nothing: compare
// fresh and replay with bare.
func BenchmarkMiddleware(b *testing.B) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		b.Fatal(err)
	}
	once, err := httpkey.New(keys, httpkey.Config{Scope: httpkey.Unscoped})
	if err != nil {
		b.Fatal(err)
	}
	answer := []byte(`{"id":"ord_01j9zt6vb2e4x8k3m5n7p9qrst"}`)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer)
	})
	inTx := once.WrapTx(func(w http.ResponseWriter, r *http.Request, _ *memstore.Tx) error { handler(w, r); return nil })
	for _, c := range []struct {
		name  string
		h     http.Handler
		fresh bool
	}{{"bare", handler, true}, {"fresh", once.Wrap(handler), true}, {"freshTx", inTx, true}, {"replay", once.Wrap(handler), false}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders", strings.NewReader(benchBody))
				r.Header.Set("Content-Type", "application/json")
				key := "same"
				if c.fresh {
					key = fmt.Sprintf("%s-%d-%d", c.name, b.N, i)
				}
				r.Header.Set("Idempotency-Key", key)
				w := httptest.NewRecorder()
				c.h.ServeHTTP(w, r)
				if w.Code != http.StatusCreated {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
