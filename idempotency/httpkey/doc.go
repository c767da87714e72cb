// Package httpkey makes HTTP handlers run once per Idempotency-Key: a repeat of a request gets the first answer, byte for byte.
//
//	once, err := httpkey.New(keys, httpkey.Config{Scope: tenantOf})
//	http.Handle("POST /orders", once.Wrap(createOrder))   // chi: r.With(once.Wrap)
//	http.Handle("POST /payments", once.WrapTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error { … }))
//
// With [Middleware.WrapTx] everything that the handler does in the transaction, the key and the answer are one commit, and the answer is
// sent after it: whatever is killed at whatever moment, either all of it happened or nothing. With [Middleware.Wrap] the key is claimed before
// the handler runs and the answer is stored after it; in between a crash leaves a claim that a repeat takes over when its lease has run out.
// Then the handler runs again, so effects outside need [MarkEffect] or phases (package idempotency).
//
// It follows the IETF's draft "The Idempotency-Key HTTP Header Field": the key is a string of RFC 9651, refusals are problem details of
// RFC 9457. Mount it inside authentication and rate limits: what these refuse must not be stored.
package httpkey
