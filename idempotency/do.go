package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Result is what [Do] and [DoTx] return.
type Result[R any] struct {
	// Value is what the function returned, now or in an earlier call.
	Value R
	// Replayed: it was an earlier one.
	Replayed bool
	// Ref names what was made, if the function said so: with [SetRef], or by a result that has a PublicID method.
	Ref string
	// Unkept is why the value could not be stored, although the function has run. Repeats do not get it: they are refused.
	Unkept error
}

// Do runs fn once per key, and gives its result to everybody who asks with the same key and hash. The claim is committed before fn is called, so
// use it for what is outside the database, or in several transactions ([Phase], [Call]); what fits into one transaction goes into [DoTx].
//
// A nil error means that Value is fn's result. If fn fails, its error is returned as it is, and the key may be used again; see [MarkEffect] for
// effects that must not be repeated. If its process dies, the next request runs fn again when the lease has run out. The result is
// stored as JSON; one that is larger than [Config.MaxResult] is given to the first caller only, and repeats get a [*NoResultError].
//
// Errors are those of [Keys.DoBytes]. ctx must not carry an open transaction of the same tables: [waybill.ErrNested].
func Do[R, T any](ctx context.Context, k *Keys[T], req Request, fn func(ctx context.Context) (R, error)) (Result[R], error) {
	if fn == nil {
		return Result[R]{}, errors.New("idempotency: the function is nil")
	}
	var made struct { // one variable: what a function shares with its closure costs every call
		value  R
		unkept error
	}
	reply, err := k.DoBytes(ctx, req, func(ctx context.Context) (Answer, error) {
		var err error
		if made.value, err = fn(ctx); err != nil {
			return Answer{}, err
		}
		answer, err := encode(made.value)
		if err != nil { // it has run: it must not run again because of this
			made.unkept = err
			answer.Lost = true
		}
		return answer, nil
	})
	if made.unkept != nil {
		k.unkept(ctx, &req, made.unkept)
	}
	if err != nil {
		return Result[R]{}, err
	}
	res, err := result(reply, &made.value)
	if !res.Replayed && made.unkept != nil {
		res.Unkept = made.unkept
	}
	return res, err
}

// DoTx runs fn once per key, in one transaction with the key, its result and whatever fn writes with an outbox of the same database: all of it
// is committed, or nothing. A request that comes while it is open gets [waybill.ErrInProgress] at once. An error of fn leaves nothing
// behind, and the next request runs it.
//
// A nil error means that Value is fn's result and is committed. fn may be called again if the database gives the transaction up because of
// others. If the outcome of the commit cannot be known the error is [waybill.ErrUncertain]: a repeat finds out. It never joins a transaction
// that is open already: [waybill.ErrNested].
func DoTx[R, T any](ctx context.Context, k *Keys[T], req Request, fn func(ctx context.Context, tx T) (R, error)) (Result[R], error) {
	if fn == nil {
		return Result[R]{}, errors.New("idempotency: the function is nil")
	}
	var value R
	reply, err := k.DoBytesTx(ctx, req, func(ctx context.Context, tx T) (Answer, error) {
		var err error
		if value, err = fn(ctx, tx); err != nil {
			return Answer{}, err
		}
		return encode(value)
	})
	if err != nil {
		return Result[R]{}, err
	}
	return result(reply, &value)
}

// encode makes an answer of a result.
func encode(value any) (Answer, error) {
	answer := Answer{ContentType: "application/json", Ref: publicID(value)}
	body, err := json.Marshal(value)
	if err != nil {
		return answer, fmt.Errorf("idempotency: the result cannot be stored: %w", err)
	}
	answer.Body = body
	return answer, nil
}

// publicID returns the name that a result has by itself.
func publicID(value any) string {
	p, ok := value.(interface{ PublicID() string })
	if !ok {
		return ""
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer && v.IsNil() {
		return ""
	}
	return p.PublicID()
}

// result returns what is in value, which was just made, or puts the stored one there.
func result[R any](reply Reply, value *R) (Result[R], error) {
	if reply.Replayed {
		*value = *new(R) // a late run has left its own there
		if err := json.Unmarshal(reply.Body, value); err != nil {
			return Result[R]{}, fmt.Errorf("%w: it ran, and this is wrong with its stored result: %w", ErrCorrupt, err)
		}
	}
	return Result[R]{Value: *value, Replayed: reply.Replayed, Ref: reply.Ref, Unkept: reply.Unkept}, nil
}
