// Package memstore is a store without a database: the reference implementation
// for the other stores, and a queue for services that do not need durability.
// Its contents are lost when the process ends.
//
// [New] provides its own transactions. [OverDB] follows those of a [*sql.DB],
// and [Over] those of a database of any type: the store never writes to the
// database, and takes the events after the commit. A crash between the two
// loses these events, and reconciliation jobs can restore them. Switching to a
// store with tables changes only the constructor call.
package memstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures a store; the zero value is ready to use.
type Config struct {
	// Lanes is the number of lanes. Defaults to 32; at most 1024.
	Lanes int
}

const (
	defaultLanes = 32
	maxLanes     = 1024
)

// Store holds events in memory. T is the type of the transactions that the
// events join. Store has every role of package driver, and is safe for
// concurrent use.
type Store[T any] struct {
	backend *backend[T]
	roles   driver.Roles[T]
}

// Driver returns the roles of the store for Waybill's packages.
func (s *Store[T]) Driver() driver.Roles[T] { return s.roles }

func newStore[T any](b *backend[T]) *Store[T] {
	return &Store[T]{backend: b, roles: driver.RolesOf[T](b)}
}

// backend implements every role of package driver.
type backend[T any] struct {
	*tables
	begin func(ctx context.Context, opts *sql.TxOptions) (Handle[T], error)
	// join, if not nil, finds a transaction that the store did not begin.
	join func(ctx context.Context, tx T) (*txn, error)

	live sync.Map // *session[T] → struct{}: open transactions of InTx
}

var (
	_ driver.Complete[*Tx]   = (*backend[*Tx])(nil)
	_ driver.RetryClassifier = (*backend[*Tx])(nil)
	_ driver.Backlogs        = (*backend[*Tx])(nil)
	_ driver.Restorer        = (*backend[*Tx])(nil)
)

// Handle is a transaction that the function passed to [Over] began.
type Handle[T any] struct {
	// Tx is the transaction that the caller's code uses.
	Tx T
	// Commit and Rollback end the transaction. A Commit that fails must leave
	// nothing committed, or return an error that matches
	// [waybill.ErrUncertain]; [sql.ErrTxDone] is recognized as well.
	Commit   func(ctx context.Context) error
	Rollback func(ctx context.Context) error

	txn *txn // nil: Begin makes one
}

// New returns a store with its own transactions.
func New(cfg Config) (*Store[*Tx], error) {
	t, err := newTables(cfg)
	if err != nil {
		return nil, err
	}
	return newStore(&backend[*Tx]{tables: t, begin: func(context.Context, *sql.TxOptions) (Handle[*Tx], error) {
		tx := &Tx{txn: newTxn(t), owned: true}
		nothing := func(context.Context) error { return nil }
		return Handle[*Tx]{Tx: tx, Commit: nothing, Rollback: nothing}, nil
	}}), nil
}

// Over returns a store that follows the transactions that begin starts. The
// store sees only the end of transactions that it began itself: writing to any
// other one fails with [waybill.ErrNoTx].
func Over[T any](begin func(ctx context.Context, opts *sql.TxOptions) (Handle[T], error), cfg Config) (*Store[T], error) {
	if begin == nil {
		return nil, errors.New("memstore: begin is nil")
	}
	t, err := newTables(cfg)
	if err != nil {
		return nil, err
	}
	return newStore(&backend[T]{tables: t, begin: begin}), nil
}

// Begin implements [driver.Beginner].
func (s *backend[T]) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[T], error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	h, err := s.begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	sess := &session[T]{store: s, handle: h}
	switch tx, own := any(h.Tx).(*Tx); {
	case own:
		sess.txn = tx.txn
	case h.txn != nil:
		sess.txn = h.txn
	default:
		sess.txn = newTxn(s.tables)
	}
	s.live.Store(sess, struct{}{})
	return sess, nil
}

// Append implements [driver.Appender].
func (s *backend[T]) Append(ctx context.Context, tx T, evs []waybill.Event) ([]driver.AppendResult, error) {
	txn, err := s.txnOf(ctx, tx)
	if err != nil {
		return nil, err
	}
	return txn.append(ctx, evs)
}

func (s *backend[T]) txnOf(ctx context.Context, tx T) (*txn, error) {
	if own, ok := any(tx).(*Tx); ok {
		if own == nil || own.txn.tables != s.tables {
			return nil, fmt.Errorf("%w: transaction of another store", waybill.ErrNoTx)
		}
		if own.closed() {
			return nil, waybill.ErrTxDone
		}
		return own.txn, nil
	}
	var found *txn
	s.live.Range(func(key, _ any) bool {
		if sess := key.(*session[T]); sess.Owns(tx) {
			found = sess.txn
		}
		return found == nil
	})
	if found == nil && s.join != nil {
		return s.join(ctx, tx)
	}
	if found == nil {
		return nil, fmt.Errorf("%w: not a transaction of InTx", waybill.ErrNoTx)
	}
	return found, nil
}

// BeginTx starts a transaction that the caller ends. It is available only for
// stores of [New].
func BeginTx(s *Store[*Tx]) *Tx {
	return &Tx{txn: newTxn(s.backend.tables)}
}

// session is a transaction of InTx.
type session[T any] struct {
	store  *backend[T]
	handle Handle[T]
	txn    *txn
}

func (s *session[T]) Tx() T { return s.handle.Tx }

func (s *session[T]) Owns(tx T) bool {
	if own, ok := any(tx).(*Tx); ok {
		return own != nil && own.txn == s.txn
	}
	a, b := any(s.handle.Tx), any(tx)
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

func (s *session[T]) Commit(ctx context.Context, _ []waybill.ID, _ bool) (driver.CommitInfo, error) {
	defer s.store.live.Delete(s)
	if err := ended(s.handle.Commit(ctx)); err != nil {
		s.txn.abandon(errors.Is(err, waybill.ErrUncertain))
		return driver.CommitInfo{}, err
	}
	return s.txn.commit(), nil
}

func (s *session[T]) Rollback(ctx context.Context) error {
	defer s.store.live.Delete(s)
	err := ended(s.handle.Rollback(ctx))
	s.txn.abandon(errors.Is(err, waybill.ErrUncertain))
	return err
}

// ended translates sql.ErrTxDone: the caller's function has already ended the
// transaction, and whether it committed is unknown.
func ended(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w: ended inside InTx", waybill.ErrUncertain, waybill.ErrTxOwned)
	}
	return err
}
