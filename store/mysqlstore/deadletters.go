package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// transact runs fn in a transaction of its own. A deadlock rolls everything
// back, and transact runs fn again: fn must start from scratch.
func (s *backend) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	for round := 0; ; round++ {
		err := s.transactOnce(ctx, fn)
		if number(err) != errDeadlock || round == maxRounds {
			return s.explain(err)
		}
	}
}

// transactOnce works at READ COMMITTED: a read returns the current rows, and
// missing rows are not locked.
func (s *backend) transactOnce(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// deadLetter holds the columns of a dead letter that a replay needs.
type deadLetter struct {
	id  waybill.ID
	seq int64
	key dedupKey
}

// Replay implements [driver.DeadLetters]. It locks the dead letters, then takes
// their dedup keys as a producer does, and then moves the rows.
func (s *backend) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	var out store.Replayed
	if len(ids) == 0 {
		return out, nil
	}
	err := s.transact(ctx, func(tx *sql.Tx) error {
		letters, err := s.lockDead(ctx, tx, ids)
		if err != nil {
			return err
		}
		if out, err = s.retake(ctx, tx, letters); err != nil {
			return err
		}
		// One time for all, so that they are in the order of seq.
		now, err := readClock(ctx, tx)
		if err != nil {
			return err
		}
		for part := range parts(out.IDs, maxIDs) {
			for _, statement := range []string{fill(s.sql.replay, "{now}", utc(now)), s.sql.dropDead} {
				if _, err := tx.ExecContext(ctx, fill(statement, "{ids}", idList(part))); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return store.Replayed{}, err
	}
	return out, nil
}

// readClock returns the database's time.
func readClock(ctx context.Context, q querier) (time.Time, error) {
	var now int64
	err := each(ctx, q, `SELECT `+micros+`UTC_TIMESTAMP(6))`, nil, nil, &now)
	return time.UnixMicro(now).UTC(), err
}

// lockDead locks the given events that are dead, in the order of their ids, and
// returns them, the oldest first.
func (s *backend) lockDead(ctx context.Context, tx querier, ids []waybill.ID) ([]deadLetter, error) {
	var letters []deadLetter
	for part := range parts(sortedIDs(ids), maxIDs) {
		var id scanID
		var seq int64
		var tenant, key []byte
		err := each(ctx, tx, fill(s.sql.lockDead, "{ids}", idList(part)), nil, func() {
			letters = append(letters, deadLetter{waybill.ID(id), seq, dedupKey{string(tenant), string(key)}})
		}, &id, &seq, &tenant, &key)
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(letters, func(a, b deadLetter) int { return cmp.Compare(a.seq, b.seq) })
	return letters, nil
}

// sortedIDs returns every id once, in the order in which all sessions lock
// several rows.
func sortedIDs(ids []waybill.ID) []waybill.ID {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(a, b waybill.ID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(sorted)
}

// retake takes the dedup keys of dead letters again and returns which of them
// can be replayed; of several with the same key, the oldest. A dead letter
// whose id is also pending, because the id was written twice, is refused like
// one whose key is taken.
func (s *backend) retake(ctx context.Context, tx querier, letters []deadLetter) (store.Replayed, error) {
	var out store.Replayed
	f, err := s.facts(ctx, tx)
	if err != nil {
		return out, err
	}
	f.readCommitted = true // regardless of the session's default
	pending, err := s.pending(ctx, tx, letters)
	if err != nil {
		return out, err
	}
	holders := make(map[dedupKey]waybill.ID)
	var keys []dedupKey
	for _, l := range letters {
		if _, again := holders[l.key]; l.key.key != "" && !again && !pending[l.id] {
			holders[l.key] = l.id
			keys = append(keys, l.key)
		}
	}
	slices.SortFunc(keys, compareKeys)
	for part := range parts(keys, maxIDs) {
		if err := s.takeSorted(ctx, tx, f, part, holders); err != nil {
			return out, err
		}
	}
	for _, l := range letters {
		switch holder := holders[l.key]; {
		case pending[l.id]:
			out.Refused = append(out.Refused, store.Refusal{ID: l.id, Holder: l.id})
		case l.key.key != "" && holder != l.id:
			out.Refused = append(out.Refused, store.Refusal{ID: l.id, Holder: holder})
		default:
			out.IDs = append(out.IDs, l.id)
		}
	}
	return out, nil
}

// pending returns the dead letters whose id is also pending.
func (s *backend) pending(ctx context.Context, tx querier, letters []deadLetter) (map[waybill.ID]bool, error) {
	pending := make(map[waybill.ID]bool)
	for part := range parts(letters, maxIDs) {
		ids := make([]waybill.ID, len(part))
		for i, l := range part {
			ids[i] = l.id
		}
		var id scanID
		query := fill(s.sql.present, "{marks}", marks(len(ids)))
		err := each(ctx, tx, query, append(idArgs(ids), idArgs(ids)...), func() { pending[waybill.ID(id)] = true }, &id)
		if err != nil {
			return nil, err
		}
	}
	return pending, nil
}

// Discard implements [driver.DeadLetters].
func (s *backend) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return s.changeRows(ctx, ids, true, change{s.sql.lockDeadIDs, s.sql.dropDead})
}

// Unblock implements [driver.DeadLetters].
func (s *backend) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return s.changeRows(ctx, ids, false, change{s.sql.lockHolding[0], s.sql.unblock[0]}, change{s.sql.lockHolding[1], s.sql.unblock[1]})
}

// change is a pair of statements: lock locks rows and returns their ids and
// creation times, run changes rows by id.
type change struct{ lock, run string }

// changeRows runs changes in one transaction and returns the changed events, in
// the order of ids. If gone is set, the rows are deleted for good, and
// changeRows records that the history is incomplete for events of that age and
// older.
func (s *backend) changeRows(ctx context.Context, ids []waybill.ID, gone bool, changes ...change) ([]waybill.ID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var done map[waybill.ID]bool
	err := s.transact(ctx, func(tx *sql.Tx) error {
		done = make(map[waybill.ID]bool, len(ids))
		var newest int64
		for _, c := range changes {
			for part := range parts(sortedIDs(ids), maxIDs) {
				written, err := c.apply(ctx, tx, part, done)
				if err != nil {
					return err
				}
				newest = max(newest, written)
			}
		}
		if !gone || len(done) == 0 {
			return nil
		}
		return s.moveHistoryFrom(ctx, tx, time.UnixMicro(newest))
	})
	if err != nil {
		return nil, err
	}
	return sqlstore.InOrder(ids, done), nil
}

// apply adds the changed events to done, and returns the creation time of the
// newest of them.
func (c change) apply(ctx context.Context, tx querier, ids []waybill.ID, done map[waybill.ID]bool) (newest int64, err error) {
	var locked []waybill.ID
	var id scanID
	var written int64
	err = each(ctx, tx, fill(c.lock, "{ids}", idList(ids)), nil, func() {
		locked, newest = append(locked, waybill.ID(id)), max(newest, written)
		done[waybill.ID(id)] = true
	}, &id, &written)
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, fill(c.run, "{ids}", idList(locked)))
	return newest, err
}
