package idempotency

import (
	"context"
	"errors"
)

// Answer is what a run under a key comes to, as bytes. A wire protocol puts into Body whatever it needs to answer again: a status and headers,
// too.
type Answer struct {
	// Body and ContentType are stored as they are.
	Body        []byte
	ContentType string
	// Ref names what was made, at most 255 bytes; empty: what [SetRef] said.
	Ref string
	// Lost says that the answer is not stored, although it is final: it is a stream, or too large. A repeat gets a [*NoResultError] with the Ref,
	// and nothing runs again. A Body larger than [Config.MaxResult] is lost, too.
	Lost bool
	// Release says that the answer is not final: it goes to this caller only, and the key may be used again. With [Keys.DoBytesTx] the
	// transaction is rolled back. After [MarkEffect] the key becomes uncertain instead. [DontStore] does the same.
	Release bool
}

// Reply is what a caller gets.
type Reply struct {
	// Answer is the one that was just made, as fn returned it but for its Ref, or the one that is stored.
	Answer
	// Replayed: it is the stored one; whatever fn has returned, if it ran, is not to be sent.
	Replayed bool
	// Unkept is why the answer of this run could not be stored, although the run succeeded. Its caller gets it all the same. The key is not given
	// back: until its lease runs out repeats are told that it is in progress.
	Unkept error
}

// DoBytes is [Do] for wire protocols: the answer is bytes. It calls fn at most once, on this goroutine, and fn has returned when it
// returns. The claim is committed before fn is called, and the answer is stored before DoBytes returns, so send it only then.
//
// The error is fn's own, as it is; or a refusal, and then fn was not called: [*InProgressError], [waybill.ErrConflict], [ErrUnresolved],
// [*NoResultError], [ErrCorrupt], [ErrStore], [waybill.ErrNested], or what is wrong with the request. Two refusals can come after fn was called, because
// somebody else took the key over meanwhile: [*InProgressError] and [waybill.ErrLeaseLost]. One key has one answer: what fn returned must not be
// sent then. If the other has already finished, the reply is the stored one.
//
// If fn panics or ends its goroutine, the key is given back, or becomes uncertain after [MarkEffect], and the panic goes on.
//
// fn's context ends when ctx does, when the lease is lost ([waybill.ErrLeaseLost] is its cause) and after [Config.MaxExecution]. To let fn finish
// although its client has gone, pass [context.WithoutCancel].
func (k *Keys[T]) DoBytes(ctx context.Context, req Request, fn func(ctx context.Context) (Answer, error)) (Reply, error) {
	if fn == nil {
		return Reply{}, errors.New("idempotency: the function is nil")
	}
	e := &invocation[T]{k: k, req: req, fn: fn}
	return e.do(ctx)
}

// DoBytesTx is [DoTx] for wire protocols: what fn does in tx, the key and the answer are committed together, before it returns. If fn returns
// an error, or an Answer with Release, nothing is left of it. fn may be called again if the database gives a transaction up because of others,
// so send the reply afterwards, not inside.
//
// The errors are those of [Keys.DoBytes]. If the outcome of the commit cannot be known it is [waybill.ErrUncertain]: a repeat finds out.
func (k *Keys[T]) DoBytesTx(ctx context.Context, req Request, fn func(ctx context.Context, tx T) (Answer, error)) (Reply, error) {
	if fn == nil {
		return Reply{}, errors.New("idempotency: the function is nil")
	}
	e := &invocation[T]{k: k, req: req, tx: fn}
	return e.do(ctx)
}
