package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// Purge implements [driver.Maintainer]. Purged events leave no trace, neither
// dead letters nor delivered events, so the history is complete only after the
// cutoff of the purge.
func (s *backend) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckPurge(state, age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	purge := s.sql.purgeHistory
	if state == store.Dead {
		purge = s.sql.purgeDead
	}
	var purged int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		cutoff := clock().Add(-age)
		var err error
		if purged, err = affected(t.exec(ctx, purge, micros(cutoff), max(limit, 0))); err != nil || purged == 0 {
			return err
		}
		if err := s.note(ctx, t, purged); err != nil {
			return err
		}
		return s.moveHistoryFrom(ctx, t, cutoff)
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}

// moveHistoryFrom records the start of the complete history, in the transaction
// that deletes older rows.
func (s *backend) moveHistoryFrom(ctx context.Context, t txTarget, from time.Time) error {
	var old string
	rows, err := t.query(ctx, s.sql.historyFrom)
	if _, err := scanOne(rows, err, &old); err != nil {
		return err
	}
	text, later := laterFrom(old, from)
	if !later {
		return nil
	}
	_, err = t.exec(ctx, s.sql.setHistoryFrom, text)
	return err
}

// laterFrom formats a time for the setting history_from, in whole seconds, and
// reports whether it is later than the current value. No time is later than
// "never" or than an unreadable value, which counts as never.
func laterFrom(old string, from time.Time) (text string, later bool) {
	whole := sqlstore.WholeSecond(from)
	if old != "" {
		since, err := time.Parse(time.RFC3339, old)
		if err != nil || !since.Before(whole) {
			return old, false
		}
	}
	return whole.Format(time.RFC3339), true
}

// PurgeWritten implements [driver.Maintainer]. Relays join in write
// transactions of their own, before or after this one.
func (s *backend) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	purged := 0
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		now := clock()
		if err := s.noRelay(ctx, t, now); err != nil {
			return err
		}
		w := settling{queue: &s.queue, t: t, now: now}
		args := []any{micros(now.Add(-age)), max(limit, 0)}
		if err := w.drop(ctx, s.sql.purgeReady, args, func(waybill.ID) { purged++ }); err != nil || purged == 0 {
			return err
		}
		if err := s.note(ctx, t, int64(purged)); err != nil {
			return err
		}
		return s.keepNoHistory(ctx, t)
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// MakeReady implements [driver.Maintainer].
func (s *backend) MakeReady(ctx context.Context, limit int) (int, error) {
	var ids []waybill.ID
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		ids = nil
		now := clock()
		if err := s.noRelay(ctx, t, now); err != nil {
			return err
		}
		rows, err := t.query(ctx, s.sql.makeReady, micros(now), max(limit, 0))
		err = eachRow(rows, err, func(rows *sql.Rows) error {
			var id waybill.ID
			if err := rows.Scan((*scanID)(&id)); err != nil {
				return err
			}
			ids = append(ids, id)
			return nil
		})
		if err != nil {
			return err
		}
		return lists(ids, idArg, func(index int, args []any) error {
			_, err := t.exec(ctx, s.sql.dropMoved[index], args...)
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	return len(ids), nil
}

// noRelay returns an error while a relay is live.
func (s *backend) noRelay(ctx context.Context, t txTarget, now time.Time) error {
	var relay string
	rows, err := t.query(ctx, s.sql.anyLive, micros(now))
	found, err := scanOne(rows, err, &relay)
	if err == nil && found {
		err = fmt.Errorf("%w: %q", store.ErrRelayLive, relay)
	}
	return err
}

// Tidy implements [driver.Maintainer]. SQLite has no partitions. Tidy removes
// nodes that have been silent for long, and dedup keys of events whose rows
// were deleted by hand.
func (s *backend) Tidy(ctx context.Context, _ time.Duration) error {
	return s.within(ctx, func(ctx context.Context, t txTarget) error {
		if _, err := t.exec(ctx, s.sql.forgetNodes, micros(clock().Add(-forgetAfter))); err != nil {
			return err
		}
		_, err := t.exec(ctx, s.sql.freeOrphans)
		return err
	})
}

// SetLanes implements [driver.Maintainer]. The outbox always has one lane.
func (s *backend) SetLanes(ctx context.Context, n int) error {
	if n != lanesOfFile {
		return fmt.Errorf("sqlitestore: %d lanes: SQLite has one writer, so the outbox has one lane", n)
	}
	return s.within(ctx, func(ctx context.Context, t txTarget) error {
		if err := s.noRelay(ctx, t, clock()); err != nil {
			return err
		}
		if _, err := t.exec(ctx, s.sql.raiseEpoch); err != nil {
			return err
		}
		return s.note(ctx, t, 1)
	})
}
