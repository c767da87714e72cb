package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// Purge implements [driver.Maintainer]. Purged events leave no trace, dead
// letters as well as delivered events: the history begins where the purge
// ended.
func (s *backend) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckPurge(state, age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	purge := s.sql.purgeHistory
	if state == store.Dead {
		purge = s.queue.sql.purgeDead
	}
	var purged int64
	err := s.transact(ctx, func(tx *sql.Tx) error {
		now, err := readClock(ctx, tx)
		if err != nil {
			return err
		}
		cutoff := now.Add(-age)
		res, err := tx.ExecContext(ctx, fill(fill(purge, "{before}", utc(cutoff)), "{limit}", strconv.Itoa(max(limit, 0))))
		if err != nil {
			return err
		}
		if purged, err = res.RowsAffected(); err != nil || purged == 0 {
			return err
		}
		if err := s.addAudit(ctx, tx, purged); err != nil {
			return err
		}
		return s.moveHistoryFrom(ctx, tx, cutoff)
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}

// moveHistoryFrom records, in the transaction that deletes older rows, that the
// history is complete only from the given time on, rounded up to whole seconds.
func (s *backend) moveHistoryFrom(ctx context.Context, tx querier, from time.Time) error {
	whole := sqlstore.WholeSecond(from)
	_, err := tx.ExecContext(ctx, fill(s.sql.moveHistoryFrom, "{from}", whole.Format(time.RFC3339)))
	return err
}

// oldRow is a row that is old enough to purge.
type oldRow struct {
	lane, seq int64
	id        waybill.ID
	keyed     bool
}

// PurgeWritten implements [driver.Maintainer]. It finds the rows without a
// lock; a procedure then deletes them, in parts, if no relay is live. It frees
// their dedup keys afterwards; Tidy frees any that it misses.
//
// The procedure has its own transactions. A record of the audit is therefore
// written before the first of them, and each adds to its count afterwards: no
// row is deleted without a record.
func (s *backend) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("mysqlstore: %w", err)
	}
	now, err := readClock(ctx, s.db)
	if err != nil {
		return 0, s.explain(err)
	}
	total := 0
	for {
		n, more, err := s.purgeSome(ctx, now.Add(-age), min(limit-total, maxIDs))
		total += n
		if n > 0 {
			err = errors.Join(err, s.auditAlone(ctx, int64(n)))
		}
		// A relay has started since; the next call reports it.
		if total > 0 && errors.Is(err, store.ErrRelayLive) {
			err = nil
		}
		if err != nil || !more || total >= limit {
			return total, err
		}
	}
}

// purgeSome deletes at most limit rows written before a time, and reports
// whether there may be more.
func (s *backend) purgeSome(ctx context.Context, before time.Time, limit int) (purged int, more bool, err error) {
	ready, err := s.oldRows(ctx, s.sql.oldReady, before, limit)
	if err != nil {
		return 0, false, err
	}
	if len(ready) > 0 {
		if err := s.auditAlone(ctx, 0); err != nil {
			return 0, false, err
		}
	}
	keys := list(ready, func(b []byte, r oldRow) []byte {
		b = strconv.AppendInt(append(b, '['), r.lane, 10)
		return append(strconv.AppendInt(append(b, ','), r.seq, 10), ']')
	})
	var relay sql.NullString
	query := fill(fill(s.sql.purgeWritten, "{ready}", string(keys)), "{late}", "[]")
	if err := each(ctx, s.db, query, nil, nil, &purged, &relay); err != nil {
		return 0, false, s.explain(err)
	}
	if relay.Valid {
		return 0, false, fmt.Errorf("mysqlstore: %w: %q", store.ErrRelayLive, relay.String)
	}
	var keyed []waybill.ID
	for _, r := range ready {
		if r.keyed {
			keyed = append(keyed, r.id)
		}
	}
	if _, err := s.freeKeys(ctx, keyed); err != nil {
		return purged, false, s.explain(err)
	}
	return purged, purged > 0 && len(ready) == limit, nil
}

// MakeReady implements [driver.Maintainer]. It takes the heartbeat's mutex, as
// the purge procedure does, so that it is serialized with a relay that starts
// at the same moment.
func (s *backend) MakeReady(ctx context.Context, limit int) (int, error) {
	moved := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		moved = 0
		if err := s.lockNodes(ctx, tx); err != nil {
			return err
		}
		if err := s.noRelay(ctx, tx); err != nil {
			return err
		}
		var ids []waybill.ID
		var id scanID
		query := fill(s.sql.dueNow, "{limit}", strconv.Itoa(max(limit, 0)))
		if err := each(ctx, tx, query, nil, func() { ids = append(ids, waybill.ID(id)) }, &id); err != nil {
			return err
		}
		for part := range parts(ids, maxIDs) {
			for _, statement := range []string{s.sql.makeReady, s.sql.dropMoved} {
				if _, err := tx.ExecContext(ctx, fill(statement, "{ids}", idList(part))); err != nil {
					return err
				}
			}
			moved += len(part)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return moved, nil
}

func (s *backend) oldRows(ctx context.Context, query string, before time.Time, limit int) ([]oldRow, error) {
	if limit <= 0 {
		return nil, nil
	}
	var rows []oldRow
	var r oldRow
	query = fill(fill(query, "{before}", utc(before)), "{limit}", strconv.Itoa(limit))
	err := each(ctx, s.db, query, nil, func() { rows = append(rows, r) }, &r.lane, &r.seq, (*scanID)(&r.id), &r.keyed)
	return rows, s.explain(err)
}

// freeKeys frees the dedup keys of the given events that are not pending, and
// returns the events whose keys remain: locked by a producer, or still needed.
func (s *backend) freeKeys(ctx context.Context, ids []waybill.ID) (left []waybill.ID, err error) {
	for part := range parts(ids, maxIDs) {
		var id scanID
		err := each(ctx, s.db, fill(s.sql.freeKeys, "{ids}", idList(part)), nil, func() { left = append(left, waybill.ID(id)) }, &id)
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// Tidy implements [driver.Maintainer]. This store has no partitions. Tidy
// removes nodes that have been silent for a day, and dedup keys that a producer
// had locked when their event was settled.
func (s *backend) Tidy(ctx context.Context, _ time.Duration) error {
	err := s.transact(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.sql.forgetNodes)
		return err
	})
	if err != nil {
		return err
	}
	last := dedupKey{}
	for {
		page, left, err := s.keyPage(ctx, last)
		if err != nil {
			return s.explain(err)
		}
		if _, err := s.freeKeys(ctx, left); err != nil {
			return s.explain(err)
		}
		if len(page) < maxIDs {
			return nil
		}
		last = page[len(page)-1]
	}
}

// keyPage returns the next page of keys, and the events among their holders
// that are not pending.
func (s *backend) keyPage(ctx context.Context, after dedupKey) (page []dedupKey, left []waybill.ID, err error) {
	var tenant, key []byte
	var id scanID
	var pending bool
	args := append(after.bytes(), []byte(after.tenant))
	err = each(ctx, s.db, fill(s.sql.keyPage, "{limit}", strconv.Itoa(maxIDs)), args, func() {
		page = append(page, dedupKey{string(tenant), string(key)})
		if !pending {
			left = append(left, waybill.ID(id))
		}
	}, &tenant, &key, &id, &pending)
	return page, left, err
}
