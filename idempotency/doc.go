// Package idempotency runs an operation once per idempotency key and returns
// the stored answer to every repeat of the request.
//
// A [Request] names a tenant, an operation and a key, and carries the hash of
// the request's content: the same key with another hash is refused. [DoTx] runs
// a function in one transaction with the key and the answer: all of it is
// committed, or nothing. [Do] commits its claim first and is for effects
// outside the database; [Phase] and [Call] let a later attempt continue where
// an earlier one was interrupted. [Keys.DoBytes] and [Keys.DoBytesTx] do the
// same for wire protocols.
//
// A nil error always comes with the answer. A concurrent request with the same
// key gets [waybill.ErrInProgress], or blocks for up to Request.WaitMax.
//
// Keys are fenced: a run that lost its lease cannot overwrite the answer of
// another run. Logs and errors contain only a short hash of a key.
package idempotency
