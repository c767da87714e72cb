// Package httpkey makes HTTP handlers run once per Idempotency-Key: a repeat of
// a request gets the first answer, byte for byte.
//
//	once, err := httpkey.New(keys, httpkey.Config{Scope: tenantOf})
//	// chi: r.With(once.Wrap)
//	http.Handle("POST /orders", once.Wrap(createOrder))
//	http.Handle("POST /payments", once.WrapTx(
//		func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { … }))
//
// With [Middleware.WrapTx] the handler's writes in the transaction, the key and
// the answer are one commit, and the answer is sent after it: after a crash at
// any moment, either all of it happened or nothing. With [Middleware.Wrap] the
// key is claimed before the handler runs and the answer is stored after it; a
// crash in between leaves a claim that a repeat takes over after its lease has
// expired. The handler then runs again, so effects outside the database need
// [MarkEffect] or phases (package idempotency).
//
// The package follows the IETF draft "The Idempotency-Key HTTP Header Field":
// the key is a string of RFC 9651, refusals are problem details of RFC 9457.
// Mount the middleware inside authentication and rate limits: their refusals
// must not be stored.
package httpkey
