package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Result is the result of [Do] and [DoTx].
type Result[R any] struct {
	// Value is the function's result, from this call or an earlier one.
	Value R
	// Replayed reports that Value comes from an earlier call.
	Replayed bool
	// Ref is the reference of the run, set with [SetRef] or by a result with a
	// PublicID method.
	Ref string
	// Unkept is the error if the value could not be stored although the
	// function ran. Repeats do not get the value: they are refused.
	Unkept error
}

// Do runs fn once per key and returns its result to every request with the same
// key and hash. The claim is committed before fn is called, so use Do for
// effects outside the database, or for several transactions ([Phase], [Call]);
// use [DoTx] for work that fits into one transaction.
//
// A nil error means that Value is fn's result. If fn fails, its error is
// returned unchanged, and the key may be used again; see [MarkEffect] for
// effects that must not be repeated. If the process dies, the next request runs
// fn again after the lease has expired. The result is stored as JSON; only the
// first caller gets a result larger than [Config.MaxResult], and repeats get a
// [*NoResultError].
//
// Errors are those of [Keys.DoBytes]. If ctx carries an open transaction of the
// same tables, the error is [waybill.ErrNested].
func Do[R, T any](ctx context.Context, k *Keys[T], req Request, fn func(ctx context.Context) (R, error)) (Result[R], error) {
	if fn == nil {
		return Result[R]{}, errors.New("idempotency: the function is nil")
	}
	// One variable: each variable shared with a closure costs every call.
	var made struct {
		value  R
		unkept error
	}
	reply, err := k.DoBytes(ctx, req, func(ctx context.Context) (Answer, error) {
		var err error
		if made.value, err = fn(ctx); err != nil {
			return Answer{}, err
		}
		answer, err := encode(made.value)
		if err != nil { // fn ran, and must not run again because of this
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

// DoTx runs fn once per key, in one transaction with the key, the result and
// all events that fn writes to an outbox of the same database: all of it is
// committed, or nothing. A concurrent request gets [waybill.ErrInProgress]
// immediately. If fn fails, everything is rolled back, and the next request
// runs fn.
//
// A nil error means that Value is fn's result and is committed. fn may be
// called again if the database aborts the transaction because of a conflict
// with others. If the outcome of the commit is unknown, the error is
// [waybill.ErrUncertain]: a repeat resolves it. DoTx never joins an open
// transaction: the error is [waybill.ErrNested].
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

// encode encodes a result as an answer.
func encode(value any) (Answer, error) {
	answer := Answer{ContentType: "application/json", Ref: publicID(value)}
	body, err := json.Marshal(value)
	if err != nil {
		return answer, fmt.Errorf("idempotency: the result cannot be stored: %w", err)
	}
	answer.Body = body
	return answer, nil
}

// publicID returns the reference of a result with a PublicID method.
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

// result returns the value of this run, or decodes the stored answer into
// value.
func result[R any](reply Reply, value *R) (Result[R], error) {
	if reply.Replayed {
		*value = *new(R) // a late run has left its own value there
		if err := json.Unmarshal(reply.Body, value); err != nil {
			return Result[R]{}, fmt.Errorf("%w: the operation ran, but its stored result cannot be decoded: %w", ErrCorrupt, err)
		}
	}
	return Result[R]{Value: *value, Replayed: reply.Replayed, Ref: reply.Ref, Unkept: reply.Unkept}, nil
}
