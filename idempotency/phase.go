package idempotency

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

// Phase runs a part of [Do] that is in the database, once for all attempts: what fn does in tx and its result, as JSON, are committed together. An
// attempt that comes after one that got past it gets the stored result, and fn is not called.
//
// Phases run one after the other, in the same order in every attempt, each under its own name. If an earlier attempt got past a phase that
// is not the one asked for now, because the code is another, it is [ErrUnknownPhase]: nothing of it runs again. If somebody else has taken the
// key over it is [waybill.ErrLeaseLost], and what fn did is rolled back. ctx must be the one that Do gave to its function. fn may be called
// again if the database gives the transaction up because of others.
func Phase[R, T any](ctx context.Context, k *Keys[T], name string, fn func(ctx context.Context, tx T) (R, error)) (R, error) {
	return phase(ctx, k, name, func(a *attempt[T]) (value R, err error) {
		err = a.save(ctx, name, func(ctx context.Context, tx T) (any, error) {
			value, err = fn(ctx, tx)
			return value, err
		})
		return value, err
	})
}

// Call is a [Phase] that is outside the database: a payment, another service. fn gets a key that is the same in every attempt, to pass on
// ([DownstreamKey]); no transaction is open while it runs. Its result is stored afterwards.
//
// A process that dies between the two leaves nothing stored, and the next attempt calls again, with the same key: the other side has to know it.
func Call[R, T any](ctx context.Context, k *Keys[T], name string, fn func(ctx context.Context, key string) (R, error)) (R, error) {
	return phase(ctx, k, name, func(a *attempt[T]) (R, error) {
		value, err := fn(ctx, a.downstream(name))
		if err != nil {
			return value, err
		}
		// It has happened, and is stored even though the caller has gone.
		ctx, cancel := detach(ctx)
		defer cancel()
		return value, a.save(ctx, name, func(context.Context, T) (any, error) { return value, nil })
	})
}

// DownstreamKey returns a key to pass on to another service. It is the same in every attempt of the run of ctx, and another one for another
// name, and after the record has expired: then the same request is a new one. It has the form of a UUID. ctx must be the one that [Do] gave to
// its function; [DoTx] has none, because nothing of an attempt that failed is left.
func DownstreamKey(ctx context.Context, name string) (string, error) {
	if n := noteFrom(ctx); n != nil {
		if run, ok := n.run.(interface{ downstream(name string) string }); ok {
			return run.downstream(name), nil
		}
	}
	return "", errNoRun
}

var errNoRun = errors.New("idempotency: this needs the context that Do gave to its function")

// downstream makes a key of what all attempts have in common: the record's names, and when it was made.
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
	id[6] = id[6]&0x0f | 0x80 // version 8: of our own making
	id[8] = id[8]&0x3f | 0x80
	return id.UUID()
}

// phases is how far the attempts of a key have come.
type phases struct {
	saved  []savedPhase
	before int   // how many of them earlier attempts have saved
	passed int   // how many of these this one has passed
	broken error // this code is not the one that saved them
}

type savedPhase struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"`
}

const maxPhase = 128

// load reads what earlier attempts have saved.
func (p *phases) load(point store.KeyPoint) error {
	if point.Name == "" {
		return nil
	}
	err := json.Unmarshal(point.Data, &p.saved)
	if err != nil || len(p.saved) == 0 || p.saved[len(p.saved)-1].Name != point.Name {
		return fmt.Errorf("%w: what it saved at %q cannot be read", ErrUnknownPhase, point.Name)
	}
	p.before = len(p.saved)
	return nil
}

// complete returns an error if this code is not the one of earlier attempts. If it never asked for a phase that they have saved it may have
// done something again, in its own way: an operator has to look.
func (a *attempt[T]) complete() error {
	p := &a.phases
	if p.broken != nil || p.passed == p.before {
		return p.broken
	}
	a.note.mark()
	return a.wrap(fmt.Errorf("%w: %q was not asked for", ErrUnknownPhase, p.saved[p.passed].Name))
}

// resume returns the result of a phase if an earlier attempt got past it.
func (p *phases) resume(name string) (json.RawMessage, bool, error) {
	switch {
	case p.broken != nil:
		return nil, false, p.broken
	case name == "" || len(name) > maxPhase:
		return nil, false, fmt.Errorf("idempotency: a phase's name has 1 to %d bytes, and %q has %d", maxPhase, name, len(name))
	case p.passed < p.before && p.saved[p.passed].Name != name:
		p.broken = fmt.Errorf("%w: it is %q, and %q was asked for", ErrUnknownPhase, p.saved[p.passed].Name, name)
		return nil, false, p.broken
	case p.passed < p.before:
		p.passed++
		return p.saved[p.passed-1].Result, true, nil
	}
	for _, s := range p.saved {
		if s.Name == name {
			return nil, false, fmt.Errorf("idempotency: a second phase %q in one run", name)
		}
	}
	return nil, false, nil
}

// phase returns the stored result of a phase, or that of run.
func phase[R, T any](ctx context.Context, k *Keys[T], name string, run func(a *attempt[T]) (R, error)) (value R, err error) {
	var none R
	n := noteFrom(ctx)
	if n == nil {
		return none, errNoRun
	}
	a, ok := n.run.(*attempt[T])
	if !ok || a.k != k {
		return none, errNoRun
	}
	if k.runner.Inside(ctx) {
		return none, a.wrap(fmt.Errorf("phase %q: %w", name, waybill.ErrNested))
	}
	if !a.phasing.TryLock() {
		return none, a.wrap(fmt.Errorf("phase %q: another one is under way", name))
	}
	defer a.phasing.Unlock()
	saved, there, err := a.phases.resume(name)
	if err != nil {
		return none, a.wrap(err)
	}
	if there {
		if err := json.Unmarshal(saved, &value); err != nil {
			a.phases.broken = fmt.Errorf("%w: the result of %q cannot be read: %w", ErrUnknownPhase, name, err)
			return none, a.wrap(a.phases.broken)
		}
		return value, nil
	}
	if value, err = run(a); err != nil {
		return none, err
	}
	return value, nil
}

// save commits what fn does, and its result, if the attempt still holds the key.
func (a *attempt[T]) save(ctx context.Context, name string, fn func(ctx context.Context, tx T) (any, error)) error {
	var saved []savedPhase
	err := a.k.runner.RunAgain(ctx, a.k.restartable, func(ctx context.Context, tx T) error {
		value, err := fn(ctx, tx)
		if err != nil {
			return err
		}
		result, err := json.Marshal(value)
		if err != nil {
			return a.wrap(fmt.Errorf("phase %q: its result is not stored, and it is rolled back: %w", name, err))
		}
		saved = append(a.phases.saved[:len(a.phases.saved):len(a.phases.saved)], savedPhase{Name: name, Result: result})
		data, err := json.Marshal(saved)
		if err != nil {
			return err
		}
		if limit := a.k.cfg.MaxResult; limit > 0 && len(data) > limit {
			return a.wrap(fmt.Errorf("phase %q: all results together have %d bytes, and MaxResult is %d", name, len(data), limit))
		}
		if err := a.k.prove(ctx, tx); err != nil {
			return err
		}
		ok, err := a.k.db.SavePoint(ctx, tx, a.key, store.KeyPoint{Name: name, Data: data})
		if err == nil && !ok {
			err = a.wrap(fmt.Errorf("phase %q is rolled back: %w", name, errLapsed))
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

// savedAfterAll finds out what became of a commit whose answer was lost. If it cannot, the attempt fails, and the next one will see.
func (a *attempt[T]) savedAfterAll(ctx context.Context, name string) bool {
	ctx, cancel := detach(ctx)
	defer cancel()
	rec, there, err := a.k.db.FindKey(ctx, a.key.KeyID)
	return err == nil && there && rec.Owner == a.key.Owner && rec.Fence == a.key.Fence && rec.Point.Name == name
}
