package httpkey_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store/memstore"
)

func Example() {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := idempotency.New(db, idempotency.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	once, err := httpkey.New(keys, httpkey.Config{Scope: func(r *http.Request) (httpkey.Scope, error) {
		// In a service: the signed-in user.
		return httpkey.Scope{Tenant: "acme", Principal: r.Header.Get("X-User")}, nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	orders := 0
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "order %d", orders)
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	post := func(key, body string) {
		r, err := http.NewRequest(http.MethodPost, server.URL+"/orders", strings.NewReader(body)) //nolint:noctx // it is an example
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-User", "ada")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		fmt.Printf("%d %.7s replayed=%q\n", resp.StatusCode, text, resp.Header.Get("Idempotent-Replayed"))
	}
	post(`"8e03978e"`, `{"sku":"A-1","quantity":2}`)
	// The same content, formatted differently.
	post(`"8e03978e"`, `{"quantity": 2.0, "sku": "A-1"}`)
	post(`"8e03978e"`, `{"sku":"A-1","quantity":3}`)
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// 201 order 1 replayed=""
	// 201 order 1 replayed="true"
	// 422 {"type" replayed=""
}
