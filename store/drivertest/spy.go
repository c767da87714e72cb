package drivertest

import (
	"context"
	"database/sql"
	"sync/atomic"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// spy is a store that counts calls, and lets a check act at the moment of a
// commit.
type spy[T any] struct {
	driver.Outbox[T]
	// writes counts the calls that write events.
	writes atomic.Int64
	// committing, if not nil, is called after a commit was requested, before it
	// runs.
	committing func()
}

func (s *spy[T]) Append(ctx context.Context, tx T, evs []waybill.Event) ([]driver.AppendResult, error) {
	s.writes.Add(1)
	return s.Outbox.Append(ctx, tx, evs)
}

func (s *spy[T]) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[T], error) {
	session, err := s.Outbox.Begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	watched := &spySession[T]{Session: session, spy: s}
	if d, ok := session.(driver.Deferrer[T]); ok {
		return &spyDeferrer[T]{spySession: watched, deferrer: d}, nil
	}
	return watched, nil
}

type spySession[T any] struct {
	driver.Session[T]
	spy *spy[T]
}

func (s *spySession[T]) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	if s.spy.committing != nil {
		s.spy.committing()
	}
	return s.Session.Commit(ctx, accepted, check)
}

// spyDeferrer is the session of a store with a Deferrer: the spy must not hide
// it.
type spyDeferrer[T any] struct {
	*spySession[T]
	deferrer driver.Deferrer[T]
}

func (s *spyDeferrer[T]) Defer(ctx context.Context, tx T, evs []waybill.Event, accepted func([]driver.AppendResult)) error {
	s.spy.writes.Add(1)
	return s.deferrer.Defer(ctx, tx, evs, accepted)
}
