package idempotency

import (
	"context"
	"errors"
)

// Answer is the result of a run, as bytes. A wire protocol encodes everything
// into Body that it needs to answer again, including a status and headers.
type Answer struct {
	// Body and ContentType are stored unchanged.
	Body        []byte
	ContentType string
	// Ref is a reference to the created object, at most 255 bytes. Defaults to
	// the reference set by [SetRef].
	Ref string
	// Lost reports that the answer is final but not stored: it is a stream, or
	// too large. A repeat gets a [*NoResultError] with the Ref, and nothing
	// runs again. A Body larger than [Config.MaxResult] is treated as lost.
	Lost bool
	// Release reports that the answer is not final: only this caller gets it,
	// and the key may be used again. With [Keys.DoBytesTx] the transaction is
	// rolled back. After [MarkEffect] the key becomes uncertain instead.
	// [DontStore] does the same.
	Release bool
}

// Reply is the result for a caller.
type Reply struct {
	// Answer is the new answer, as fn returned it with its Ref filled in, or
	// the stored answer.
	Answer
	// Replayed reports that Answer is the stored one; if fn ran as well, its
	// own answer must not be sent.
	Replayed bool
	// Unkept is the error if the answer of a successful run could not be
	// stored. The caller still gets the answer. The key is not released: until
	// its lease expires, repeats get [waybill.ErrInProgress].
	Unkept error
}

// DoBytes is [Do] for wire protocols: the answer is bytes. It calls fn at most
// once, on the calling goroutine, and returns after fn has returned. The claim
// is committed before fn is called, and the answer is stored before DoBytes
// returns, so send the answer only after that.
//
// The error is fn's own, unchanged, or a refusal. After a refusal fn was not
// called: [*InProgressError], [waybill.ErrConflict], [ErrUnresolved],
// [*NoResultError], [ErrCorrupt], [ErrStore], [waybill.ErrNested], or a
// validation error of the request. Two errors can also occur after fn was
// called, if another run took the key over in the meantime: [*InProgressError]
// and [waybill.ErrLeaseLost]. One key has one answer: the answer of fn must not
// be sent then. If the other run has already finished, the reply is its stored
// answer.
//
// If fn panics or ends its goroutine, the key is released, or becomes uncertain
// after [MarkEffect], and the panic continues.
//
// fn's context ends when ctx ends, when the lease is lost (with the cause
// [waybill.ErrLeaseLost]), and after [Config.MaxExecution]. To let fn finish
// after its client has disconnected, pass [context.WithoutCancel].
func (k *Keys[T]) DoBytes(ctx context.Context, req Request, fn func(ctx context.Context) (Answer, error)) (Reply, error) {
	if fn == nil {
		return Reply{}, errors.New("idempotency: the function is nil")
	}
	e := newInvocation(k, req)
	e.fn = fn
	return e.do(ctx)
}

// DoBytesTx is [DoTx] for wire protocols: the writes of fn in tx, the key and
// the answer are committed together, before DoBytesTx returns. If fn returns an
// error, or an Answer with Release, everything is rolled back. fn may be called
// again if the database aborts a transaction because of a conflict with others,
// so send the reply after DoBytesTx, not in fn.
//
// The errors are those of [Keys.DoBytes]. If the outcome of the commit is
// unknown, the error is [waybill.ErrUncertain]: a repeat resolves it.
func (k *Keys[T]) DoBytesTx(ctx context.Context, req Request, fn func(ctx context.Context, tx T) (Answer, error)) (Reply, error) {
	if fn == nil {
		return Reply{}, errors.New("idempotency: the function is nil")
	}
	e := newInvocation(k, req)
	e.tx = fn
	return e.do(ctx)
}
