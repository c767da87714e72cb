// Package idempotency runs what a key stands for once, and gives its answer to everybody who asks again.
//
// A [Request] names a tenant, an operation and a key, and carries the hash of what is asked for: the same key with another hash is refused.
// [DoTx] runs a function in one transaction with the key and the answer: all of it is committed, or nothing. [Do] commits its claim first, and
// is for what is outside the database; [Phase] and [Call] let a later attempt go on where an earlier one was cut off. [Keys.DoBytes] and
// [Keys.DoBytesTx] are the same for wire protocols.
//
// A nil error always comes with the answer. Whoever comes while another is at it gets [waybill.ErrInProgress], or waits if he says so.
//
// Keys are fenced: a run that lost its lease cannot store its answer over another's. In logs and errors a key is only ever a short hash of it.
package idempotency
