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

// deadLetter holds the columns of a dead letter that a replay needs.
type deadLetter struct {
	id  waybill.ID
	seq int64
	key dedupKey
}

// Replay implements [driver.DeadLetters]. It locks the dead letters, then takes
// their dedup keys as a producer does, and then moves the rows.
func (s *backend) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	return s.replay(ctx, ids, s.retake)
}

// replay locks the dead letters among ids, and moves those that choose returns
// to the delayed events.
func (q *queue) replay(
	ctx context.Context, ids []waybill.ID, choose func(context.Context, querier, []deadLetter) (store.Replayed, error),
) (store.Replayed, error) {
	var out store.Replayed
	if len(ids) == 0 {
		return out, nil
	}
	err := q.transact(ctx, func(tx *sql.Tx) error {
		letters, err := q.lockDead(ctx, tx, ids)
		if err != nil {
			return err
		}
		if out, err = choose(ctx, tx, letters); err != nil {
			return err
		}
		// One time for all, so that they are in the order of seq.
		now, err := readClock(ctx, tx)
		if err != nil {
			return err
		}
		for part := range parts(out.IDs, maxIDs) {
			for _, statement := range []string{fill(q.sql.replay, "{now}", utc(now)), q.sql.dropDead} {
				if _, err := tx.ExecContext(ctx, fill(statement, "{ids}", idList(part))); err != nil {
					return err
				}
			}
		}
		return q.addAudit(ctx, tx, int64(len(out.IDs)))
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
func (q *queue) lockDead(ctx context.Context, tx querier, ids []waybill.ID) ([]deadLetter, error) {
	var letters []deadLetter
	for part := range parts(sortedIDs(ids), maxIDs) {
		var id scanID
		var seq int64
		var tenant, key []byte
		err := each(ctx, tx, fill(q.sql.lockDead, "{ids}", idList(part)), nil, func() {
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

// Discard implements [driver.DeadLetters]. Discarded events leave no trace: the
// history is complete only for younger ones.
func (s *backend) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return s.discard(ctx, ids, s.moveHistoryFrom)
}

// discard deletes dead letters. In the same transaction it calls gone, if set,
// with the creation time of the newest of them.
func (q *queue) discard(
	ctx context.Context, ids []waybill.ID, gone func(context.Context, querier, time.Time) error,
) ([]waybill.ID, error) {
	return q.changeRows(ctx, ids, gone, change{q.sql.lockDeadIDs, q.sql.dropDead})
}

// Unblock implements [driver.DeadLetters].
func (q *queue) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return q.changeRows(ctx, ids, nil, change{q.sql.lockHolding[0], q.sql.unblock[0]}, change{q.sql.lockHolding[1], q.sql.unblock[1]})
}

// change is a pair of statements: lock locks rows and returns their ids and
// creation times, run changes rows by id.
type change struct{ lock, run string }

// changeRows runs changes in one transaction and returns the changed events, in
// the order of ids. It then calls after, if set, with the creation time of the
// newest of them, in the same transaction.
func (q *queue) changeRows(
	ctx context.Context, ids []waybill.ID, after func(context.Context, querier, time.Time) error, changes ...change,
) ([]waybill.ID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var done map[waybill.ID]bool
	err := q.transact(ctx, func(tx *sql.Tx) error {
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
		if err := q.addAudit(ctx, tx, int64(len(done))); err != nil {
			return err
		}
		if after == nil || len(done) == 0 {
			return nil
		}
		return after(ctx, tx, time.UnixMicro(newest))
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
