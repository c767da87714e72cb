// Package logstore is a store with one role, Outbox: a log of events in the
// memory of the process. Another part of the program reads the log.
package logstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Store is a log of events.
type Store struct{ log *log }

// New returns an empty log.
func New() *Store {
	return &Store{&log{writer: make(chan struct{}, 1), ids: map[waybill.ID]bool{}, keys: map[dedupKey]waybill.ID{}}}
}

// Driver implements [driver.Store]. The store has no other role than Outbox.
func (s *Store) Driver() driver.Roles[*Tx] { return driver.Roles[*Tx]{Outbox: s.log} }

// Rows returns the committed events, in the order of their commits.
func (s *Store) Rows() []store.Row {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return slices.Clone(s.log.rows)
}

// log implements [driver.Outbox].
type log struct {
	driver.Unimplemented[*Tx] // for methods of later versions
	hub                       driver.Hub
	writer                    chan struct{} // full while a transaction writes

	mu   sync.Mutex // guards the fields below
	rows []store.Row
	ids  map[waybill.ID]bool
	keys map[dedupKey]waybill.ID // of pending events
}

type dedupKey struct{ tenant, key string }

// Local implements [driver.Local].
func (l *log) Local() *driver.Hub { return &l.hub }

// Committed implements [driver.Resolver].
func (l *log) Committed(_ context.Context, id waybill.ID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[id], nil
}

// Begin implements [driver.Beginner].
func (l *log) Begin(ctx context.Context, _ *sql.TxOptions) (driver.Session[*Tx], error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return &session{&Tx{log: l, ids: map[waybill.ID]bool{}, keys: map[dedupKey]waybill.ID{}}}, nil
}

// Append implements [driver.Appender]. Its first call in a transaction waits
// until no other transaction writes: a second event with the same dedup key
// has to wait for the outcome of the first.
func (l *log) Append(ctx context.Context, tx *Tx, evs []waybill.Event) ([]driver.AppendResult, error) {
	switch {
	case tx == nil || tx.log != l:
		return nil, waybill.ErrNoTx
	case tx.over:
		return nil, waybill.ErrTxDone
	}
	if !tx.writes {
		select {
		case l.writer <- struct{}{}:
			tx.writes = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	results := make([]driver.AppendResult, len(evs))
	for i, ev := range evs {
		results[i].ID = ev.ID // all events are in lane 0
		key := dedupKey{ev.TenantID, ev.DedupKey}
		holder, pending := l.keys[key]
		if !pending {
			holder, pending = tx.keys[key]
		}
		if pending && holder != ev.ID {
			results[i].ID = holder // absorbed
			continue
		}
		if l.ids[ev.ID] || tx.ids[ev.ID] {
			return nil, fmt.Errorf("logstore: duplicate id %s", ev.ID)
		}
		tx.ids[ev.ID] = true
		if ev.DedupKey != "" {
			tx.keys[key] = ev.ID
		}
		tx.rows = append(tx.rows, newRow(ev))
	}
	return results, nil
}

// newRow returns the row of an event. An event with a delay gets a time.
func newRow(ev waybill.Event) store.Row {
	now := time.Now().UTC().Truncate(time.Microsecond)
	row := store.Row{Key: store.Key{ID: ev.ID}, CreatedAt: now}
	switch {
	case ev.Delay > 0:
		row.DueAt = now.Add(ev.Delay)
	case ev.AvailableAt.After(now):
		row.DueAt = ev.AvailableAt
	}
	ev.Delay, ev.AvailableAt = 0, row.DueAt
	row.Event = ev
	return row
}

// Tx is a transaction of InTx.
type Tx struct {
	log          *log
	writes, over bool
	rows         []store.Row
	ids          map[waybill.ID]bool
	keys         map[dedupKey]waybill.ID
}

// Commit fails: InTx ends the transaction.
func (tx *Tx) Commit() error { return waybill.ErrTxOwned }

// Rollback fails: InTx ends the transaction.
func (tx *Tx) Rollback() error { return waybill.ErrTxOwned }

// session implements [driver.Session].
type session struct{ tx *Tx }

func (s *session) Tx() *Tx          { return s.tx }
func (s *session) Owns(tx *Tx) bool { return tx == s.tx }
func (s *session) end() {
	s.tx.over = true
	if s.tx.writes {
		<-s.tx.log.writer
		s.tx.writes = false
	}
}

// Commit appends the events to the log. There are no savepoints, so that no
// accepted event was undone.
func (s *session) Commit(context.Context, []waybill.ID, bool) (driver.CommitInfo, error) {
	defer s.end()
	l := s.tx.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range s.tx.rows {
		row.Seq = int64(len(l.rows) + 1)
		l.rows = append(l.rows, row)
		l.ids[row.ID] = true
	}
	for key, id := range s.tx.keys {
		l.keys[key] = id
	}
	return driver.CommitInfo{Checked: true}, nil
}

// Rollback forgets the events.
func (s *session) Rollback(context.Context) error {
	if !s.tx.over {
		s.end()
	}
	return nil
}
