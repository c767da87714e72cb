// Package linear checks that the stores are linearizable: every call of a
// store's driver takes effect at one moment between its start and its end. The
// simulator runs on the memory store only, so it is worth as much as the memory
// store is like the other stores.
//
// Several clients call one store concurrently, with operations that a seed
// draws. A recorder at the driver's roles notes the start, the end, the
// arguments and the answer of every call. Package porcupine then searches an
// order of the calls that a model of the contract allows. There is one model
// for the relay's calls, which is checked for each lane and each event, one for
// idempotency keys, which is checked for each key, and one for the inbox, which
// is checked for each event of a group.
//
// Some answers are lost on purpose: the client drops the answer, cancels the
// call, or loses its connection. Such a call may take effect at any later
// moment, or never.
//
// No model has a clock. A lease lasts one hour, so that it never expires during
// a run, or minus one hour, so that it has expired by every clock.
//
// Stores with a known mistake, which the tests build around the memory store,
// prove that the checker finds mistakes.
package linear
