package idempotency

// This file runs the phases of an attempt, and resumes those that an earlier
// attempt completed.

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Phase runs a part of [Do] in a database transaction, once for all attempts:
// the writes of fn in tx and its result, as JSON, are committed together. A
// later attempt gets the stored result, and fn is not called.
//
// Phases run one after the other, in the same order in every attempt, each with
// its own name. If an earlier attempt completed a different phase at this
// position, because the code has changed, the error is [ErrUnknownPhase]: no
// phase runs again. If another run has taken the key over, the error is
// [waybill.ErrLeaseLost], and the writes of fn are rolled back. ctx must be the
// context that Do passed to its function. fn may be called again if the
// database aborts the transaction because of a conflict with others.
func Phase[R, T any](ctx context.Context, k *Keys[T], name string, fn func(ctx context.Context, tx T) (R, error)) (R, error) {
	return phase(ctx, k, name, func(a *attempt[T]) (value R, err error) {
		err = a.save(ctx, name, func(ctx context.Context, tx T) (any, error) {
			value, err = fn(ctx, tx)
			return value, err
		})
		return value, err
	})
}

// Call is a [Phase] outside the database: a payment, or a call of another
// service. fn gets a key that is the same in every attempt, to pass on to that
// service ([DownstreamKey]); no transaction is open while fn runs. The result
// is stored afterwards.
//
// If the process dies between the call and the commit of its result, the next
// attempt calls again with the same key: the other service must be idempotent
// for that key.
func Call[R, T any](ctx context.Context, k *Keys[T], name string, fn func(ctx context.Context, key string) (R, error)) (R, error) {
	return phase(ctx, k, name, func(a *attempt[T]) (R, error) {
		value, err := fn(ctx, a.downstream(name))
		if err != nil {
			return value, err
		}
		// The call has happened, so its result is stored even if the caller has
		// gone.
		ctx, cancel := detach(ctx)
		defer cancel()
		return value, a.save(ctx, name, func(context.Context, T) (any, error) { return value, nil })
	})
}

// DownstreamKey returns a key to pass on to another service. The key is the
// same in every attempt of the run of ctx. It differs for another name, and
// after the record has expired: the same request is then a new one. It has the
// form of a UUID. ctx must be the context that [Do] passed to its function;
// [DoTx] has no downstream keys, because a failed attempt leaves nothing
// behind.
func DownstreamKey(ctx context.Context, name string) (string, error) {
	if n := noteFrom(ctx); n != nil {
		if run, ok := n.run.(interface{ downstream(name string) string }); ok {
			return run.downstream(name), nil
		}
	}
	return "", errNoRun
}

var errNoRun = errors.New("idempotency: ctx is not the context that Do passed to its function")

// downstream derives a key from values that all attempts share: the record's
// identity and its creation time.
func (a *attempt[T]) downstream(name string) string {
	h := sha256.New()
	var n [8]byte
	for _, part := range []string{a.key.Tenant, a.key.Operation, a.key.Key, a.created.UTC().Format("2006-01-02T15:04:05.000000"), name} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		_, _ = h.Write(n[:])
		_, _ = h.Write([]byte(part))
	}
	var id waybill.ID
	copy(id[:], h.Sum(nil))
	id[6] = id[6]&0x0f | 0x80 // version 8: custom
	id[8] = id[8]&0x3f | 0x80
	return id.UUID()
}

// phases is the progress of the attempts of a key.
type phases struct {
	saved  []savedPhase
	before int   // number of phases saved by earlier attempts
	passed int   // number of those that this attempt has passed
	broken error // set if other code saved the phases
}

type savedPhase struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"`
}

const maxPhase = 128

// load reads the phases saved by earlier attempts.
func (p *phases) load(point store.KeyPoint) error {
	if point.Name == "" {
		return nil
	}
	err := json.Unmarshal(point.Data, &p.saved)
	if err != nil || len(p.saved) == 0 || p.saved[len(p.saved)-1].Name != point.Name {
		return fmt.Errorf("%w: the data saved at %q cannot be decoded", ErrUnknownPhase, point.Name)
	}
	p.before = len(p.saved)
	return nil
}

// complete returns an error if the current code differs from that of earlier
// attempts. If the code skipped a saved phase, it may have repeated an effect
// in another way: complete marks the run as having an effect, so that an
// operator has to resolve the key.
func (a *attempt[T]) complete() error {
	p := &a.phases
	if p.broken != nil || p.passed == p.before {
		return p.broken
	}
	a.note.mark()
	return a.wrap(fmt.Errorf("%w: saved phase %q was skipped", ErrUnknownPhase, p.saved[p.passed].Name))
}

// resume returns the result of a phase if an earlier attempt completed it.
func (p *phases) resume(name string) (json.RawMessage, bool, error) {
	switch {
	case p.broken != nil:
		return nil, false, p.broken
	case name == "" || len(name) > maxPhase:
		return nil, false, fmt.Errorf("idempotency: phase name %q has %d bytes, not 1 to %d", name, len(name), maxPhase)
	case p.passed < p.before && p.saved[p.passed].Name != name:
		p.broken = fmt.Errorf("%w: saved phase is %q, requested phase is %q", ErrUnknownPhase, p.saved[p.passed].Name, name)
		return nil, false, p.broken
	case p.passed < p.before:
		p.passed++
		return p.saved[p.passed-1].Result, true, nil
	}
	for _, s := range p.saved {
		if s.Name == name {
			return nil, false, fmt.Errorf("idempotency: duplicate phase %q in one run", name)
		}
	}
	return nil, false, nil
}

// phase returns the stored result of a phase, or the result of run.
func phase[R, T any](ctx context.Context, k *Keys[T], name string, run func(a *attempt[T]) (R, error)) (value R, err error) {
	var none R
	n := noteFrom(ctx)
	if n == nil {
		return none, errNoRun
	}
	a, ok := n.run.(*attempt[T])
	if !ok || a.k != &k.core {
		return none, errNoRun
	}
	if k.runner.Inside(ctx) {
		return none, a.wrap(fmt.Errorf("phase %q: %w", name, waybill.ErrNested))
	}
	if !a.phasing.TryLock() {
		return none, a.wrap(fmt.Errorf("phase %q: another phase is running", name))
	}
	defer a.phasing.Unlock()
	saved, there, err := a.phases.resume(name)
	if err != nil {
		return none, a.wrap(err)
	}
	if there {
		if err := json.Unmarshal(saved, &value); err != nil {
			a.phases.broken = fmt.Errorf("%w: the result of %q cannot be decoded: %w", ErrUnknownPhase, name, err)
			return none, a.wrap(a.phases.broken)
		}
		return value, nil
	}
	if value, err = run(a); err != nil {
		return none, err
	}
	return value, nil
}

// save commits the writes of fn and its result, if the attempt still holds the
// key.
func (a *attempt[T]) save(ctx context.Context, name string, fn func(ctx context.Context, tx T) (any, error)) error {
	var saved []savedPhase
	err := a.k.runner.RunAgain(ctx, a.k.restartable, func(ctx context.Context, tx T) error {
		value, err := fn(ctx, tx)
		if err != nil {
			return err
		}
		result, err := json.Marshal(value)
		if err != nil {
			return a.wrap(fmt.Errorf("phase %q: rolled back, because its result cannot be encoded: %w", name, err))
		}
		saved = append(a.phases.saved[:len(a.phases.saved):len(a.phases.saved)], savedPhase{Name: name, Result: result})
		data, err := json.Marshal(saved)
		if err != nil {
			return err
		}
		if limit := a.k.cfg.MaxResult; limit > 0 && len(data) > limit {
			return a.wrap(fmt.Errorf("phase %q: all results together have %d bytes, more than MaxResult (%d)", name, len(data), limit))
		}
		if err := a.k.prove(ctx, tx); err != nil {
			return err
		}
		ok, err := a.k.db.SavePoint(ctx, tx, a.key, store.KeyPoint{Name: name, Data: data})
		if err == nil && !ok {
			err = a.wrap(fmt.Errorf("phase %q: rolled back: %w", name, errLapsed))
		}
		return err
	})
	if errors.Is(err, waybill.ErrUncertain) && a.savedAfterAll(ctx, name) {
		err = nil
	}
	if err == nil {
		a.phases.saved = saved
	}
	return err
}

// savedAfterAll reports whether a commit with an unknown outcome saved the
// phase. If that cannot be determined, the attempt fails, and the next attempt
// reads the record.
func (a *attempt[T]) savedAfterAll(ctx context.Context, name string) bool {
	ctx, cancel := detach(ctx)
	defer cancel()
	rec, there, err := a.k.db.FindKey(ctx, a.key.KeyID)
	return err == nil && there && rec.Owner == a.key.Owner && rec.Fence == a.key.Fence && rec.Point.Name == name
}
