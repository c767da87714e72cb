package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// deadLetter is the part of a dead letter that a replay needs.
type deadLetter struct {
	id          waybill.ID
	seq         int64
	tenant, key string
}

// Replay implements [driver.DeadLetters]. It is one write transaction, so a
// concurrent replay or discard of the same events runs before or after it.
func (q *queue) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	var out store.Replayed
	if len(ids) == 0 {
		return out, nil
	}
	err := q.store.within(ctx, func(ctx context.Context, t txTarget) error {
		letters, err := q.deadLetters(ctx, t, ids)
		if err != nil {
			return err
		}
		if out, err = q.retake(ctx, t, letters); err != nil {
			return err
		}
		// All events get one due time, so that their order is the order of seq.
		now := micros(clock())
		err = lists(out.IDs, idArg, func(index int, args []any) error {
			if _, err := t.exec(ctx, q.sql.replay[index], append([]any{now}, args...)...); err != nil {
				return err
			}
			return changed(ctx, t, q.sql.discard[index], args, func(waybill.ID, int64) {})
		})
		if err != nil {
			return err
		}
		return q.store.note(ctx, t, int64(len(out.IDs)))
	})
	if err != nil {
		return store.Replayed{}, err
	}
	return out, nil
}

// deadLetters returns the dead letters among the events, oldest first.
func (q *queue) deadLetters(ctx context.Context, t txTarget, ids []waybill.ID) ([]deadLetter, error) {
	found := make(map[waybill.ID]deadLetter, len(ids))
	err := lists(ids, idArg, func(index int, args []any) error {
		rows, err := t.query(ctx, q.sql.deadKeys[index], args...)
		return eachRow(rows, err, func(rows *sql.Rows) error {
			var l deadLetter
			if err := rows.Scan((*scanID)(&l.id), &l.seq, &l.tenant, &l.key); err != nil {
				return err
			}
			found[l.id] = l
			return nil
		})
	})
	letters := make([]deadLetter, 0, len(found))
	for _, l := range found {
		letters = append(letters, l)
	}
	slices.SortFunc(letters, func(a, b deadLetter) int { return cmp.Compare(a.seq, b.seq) })
	return letters, err
}

// retake takes the dedup keys of dead letters again and returns the dead
// letters that can be replayed. It refuses a dead letter whose key is taken,
// and one whose id is also pending because a producer used the id twice.
func (q *queue) retake(ctx context.Context, t txTarget, letters []deadLetter) (store.Replayed, error) {
	var out store.Replayed
	ids := make([]waybill.ID, len(letters))
	for i, l := range letters {
		ids[i] = l.id
	}
	pending, err := q.presentIn(ctx, t, ids)
	if err != nil {
		return out, err
	}
	for _, l := range letters {
		holder := l.id
		free := !pending[l.id]
		if free && l.key != "" {
			n, err := affected(t.exec(ctx, q.store.sql.takeKey, l.tenant, l.key, l.id[:]))
			if err != nil {
				return out, err
			}
			if free = n == 1; !free {
				rows, err := t.query(ctx, q.store.sql.keyHolder, l.tenant, l.key)
				if _, err := scanOne(rows, err, (*scanID)(&holder)); err != nil {
					return out, err
				}
			}
		}
		if !free {
			out.Refused = append(out.Refused, store.Refusal{ID: l.id, Holder: holder})
			continue
		}
		out.IDs = append(out.IDs, l.id)
	}
	return out, nil
}

// Discard implements [driver.DeadLetters]. The outbox has recorded the events
// of a backlog.
func (q *queue) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return q.updateByID(ctx, ids, !q.isBacklog(), q.sql.discard)
}

// Unblock implements [driver.DeadLetters].
func (q *queue) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return q.updateByID(ctx, ids, false, q.sql.unblockDead, q.sql.unblockDelayed)
}

// updateByID runs statements that return the changed events, each for all ids,
// and returns the changed ids in the order of ids. If events are gone then, it
// records that for events of their age "not found" does not prove "never
// committed".
func (q *queue) updateByID(ctx context.Context, ids []waybill.ID, gone bool, ways ...[]*statement) ([]waybill.ID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	done := make(map[waybill.ID]bool, len(ids))
	err := q.store.within(ctx, func(ctx context.Context, t txTarget) error {
		var newest int64
		for _, way := range ways {
			err := lists(ids, idArg, func(index int, args []any) error {
				return changed(ctx, t, way[index], args, func(id waybill.ID, written int64) {
					done[id], newest = true, max(newest, written)
				})
			})
			if err != nil {
				return err
			}
		}
		if err := q.store.note(ctx, t, int64(len(done))); err != nil {
			return err
		}
		if !gone || len(done) == 0 {
			return nil
		}
		return q.store.moveHistoryFrom(ctx, t, time.UnixMicro(newest))
	})
	if err != nil {
		return nil, err
	}
	return sqlstore.InOrder(ids, done), nil
}

// changed calls fn with each id that a statement returns, and the time at which
// the event was written.
func changed(ctx context.Context, t txTarget, st *statement, args []any, fn func(id waybill.ID, written int64)) error {
	rows, err := t.query(ctx, st, args...)
	return eachRow(rows, err, func(rows *sql.Rows) error {
		var id waybill.ID
		var written int64
		if err := rows.Scan((*scanID)(&id), &written); err != nil {
			return err
		}
		fn(id, written)
		return nil
	})
}
