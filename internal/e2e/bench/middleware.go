package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

const (
	middlewareTitle = "httpkey, added to a handler"

	orderBody   = `{"items":[{"sku":"A-1","quantity":2,"price":19.90},{"sku":"B-7","quantity":1,"price":5}],"customer":"cus_1"}`
	orderAnswer = `{"id":"ord_01j9zt6vb2e4x8k3m5n7p9qrst"}`
)

// middlewareTable measures the overhead of the middleware for a handler that
// does nothing, over a memory store with negligible cost: reading the key and
// the body, the canonical hash, the keys themselves, and storing the answer.
func middlewareTable(out io.Writer) error {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		return err
	}
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		return err
	}
	once, err := httpkey.New(keys, httpkey.Config{Scope: httpkey.Unscoped})
	if err != nil {
		return err
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, orderAnswer)
	})
	inTx := once.WrapTx(func(w http.ResponseWriter, r *http.Request, _ *memstore.Tx) error { handler(w, r); return nil })
	n := 0
	fresh := func() string { n++; return "fresh-" + strconv.Itoa(n) }
	same := func() string { return "same" }
	bare := benchmark(handler, same)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s, store in memory, body of %d bytes\tµs a request\tallocations\tbytes\t\n", middlewareTitle, len(orderBody))
	for _, c := range []struct {
		name    string
		handler http.Handler
		key     func() string
	}{{"Wrap, first run", once.Wrap(handler), fresh}, {"WrapTx, first run", inTx, fresh}, {"Wrap, repeat", once.Wrap(handler), same}} {
		r := benchmark(c.handler, c.key)
		if r.N == 0 {
			return fmt.Errorf("%s: it did not answer with %d", c.name, http.StatusCreated)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%d\t%d\t\n", c.name, float64(r.NsPerOp()-bare.NsPerOp())/1e3, r.AllocsPerOp()-bare.AllocsPerOp(),
			r.AllocedBytesPerOp()-bare.AllocedBytesPerOp())
	}
	return w.Flush()
}

// benchmark measures a handler.
func benchmark(h http.Handler, key func() string) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/orders", strings.NewReader(orderBody))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", key())
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusCreated {
				b.Fatal(w.Code, w.Body)
			}
		}
	})
}
