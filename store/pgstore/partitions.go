package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// daysAhead is the number of future days with a partition of the history.
const daysAhead = 3

// Limits for the wait for a partition's lock and for the scan of the default
// partition. Settlements wait during both.
const (
	dayLockTimeout = time.Second
	dayTimeout     = 3 * time.Second
	dayAttempts    = 4
	dayPause       = 300 * time.Millisecond
)

// historyDays returns the schema of the history, the database's clock, and the
// daily partitions of the history.
const historyDays = `SELECT n.nspname, clock_timestamp(), coalesce(d.relname, '') FROM pg_class h JOIN pg_namespace n ON n.oid = h.relnamespace
LEFT JOIN (pg_inherits i JOIN pg_class d ON d.oid = i.inhrelid AND d.relname ~ '^{prefix}history_[0-9]{8}$') ON i.inhparent = h.oid
WHERE h.oid = '{history}'::regclass`

// forgetUntil records that the history is complete since $1 at the earliest.
const forgetUntil = `WITH gone AS (SELECT $1::timestamptz AS at), ` + noteGone + ` SELECT`

// Tidy implements [driver.Maintainer]. Each day has a separate transaction, so
// that its lock is short. If a day's partition cannot be created, because the
// default partition already has rows of that day or is too large to scan, the
// day stays in the default partition. An account without DDL privileges has
// only the default partition. [Store.Purge] deletes rows in any partition.
func (c *core) Tidy(ctx context.Context, age time.Duration) error {
	if err := c.db.exec(ctx, c.sql.forgetNodes); err != nil {
		return c.explain(err)
	}
	if err := c.freeOrphans(ctx); err != nil {
		return c.explain(err)
	}
	h, err := c.history(ctx)
	if err != nil {
		return c.explain(err)
	}
	var errs []error
	for i := range daysAhead + 1 {
		if day := h.today.AddDate(0, 0, i); !h.has[h.name(day)] {
			errs = append(errs, c.patiently(ctx, func(tx database) error { return tx.exec(ctx, h.create(day)) }))
		}
	}
	for _, day := range h.days {
		end := day.AddDate(0, 0, 1)
		if age < 0 || end.After(h.now.Add(-age)) {
			continue
		}
		errs = append(errs, c.patiently(ctx, func(tx database) error {
			if err := tx.exec(ctx, h.drop(day)); err != nil {
				return err
			}
			return tx.exec(ctx, c.sql.forgetDay, end)
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pgstore: tidy: %w", err)
	}
	return nil
}

// history describes the history table and its daily partitions.
type history struct {
	schema, prefix string
	table          string
	now, today     time.Time
	days           []time.Time
	has            map[string]bool
}

func (c *core) history(ctx context.Context) (history, error) {
	h := history{prefix: c.cfg.Prefix + "history_", table: c.cfg.replacer().Replace("{history}"), has: make(map[string]bool)}
	var name string
	rows, err := c.db.query(ctx, c.sql.days)
	err = collect(rows, err, func() error {
		if day, err := time.Parse("20060102", strings.TrimPrefix(name, h.prefix)); err == nil {
			h.days = append(h.days, day)
		}
		h.has[name] = true
		return nil
	}, &h.schema, &h.now, &name)
	h.now = h.now.UTC()
	h.today = h.now.Truncate(24 * time.Hour)
	return h, err
}

func (h history) name(day time.Time) string { return h.prefix + day.Format("20060102") }

// quoted returns the partition's name, in the schema of its parent, regardless
// of the search path.
func (h history) quoted(day time.Time) string {
	quote := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
	return quote(h.schema) + "." + quote(h.name(day))
}

// create returns the statement that creates a day's partition. It locks the
// whole table. ATTACH PARTITION would take a weaker lock, but then a settlement
// that is already waiting on the default partition would fail, because its rows
// no longer belong there.
func (h history) create(day time.Time) string {
	const stamp = "2006-01-02 15:04:05+00"
	return fmt.Sprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('%s') TO ('%s')",
		h.quoted(day), h.table, day.Format(stamp), day.AddDate(0, 0, 1).Format(stamp))
}

func (h history) drop(day time.Time) string { return "DROP TABLE IF EXISTS " + h.quoted(day) }

// patiently changes the partitions in a transaction. It waits only briefly for
// a lock and retries after a pause, because all later statements queue behind
// it. Two nodes do not collide: the second node leaves the work to the first.
func (c *core) patiently(ctx context.Context, change func(tx database) error) error {
	for attempt := 1; ; attempt++ {
		err := c.db.within(ctx, func(tx database) error {
			alone := false
			rows, err := tx.query(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)),
set_config('lock_timeout', $2, true), set_config('statement_timeout', $3, true)`,
				"waybill tidy "+c.cfg.Schema+"."+c.cfg.Prefix, milliseconds(dayLockTimeout), milliseconds(dayTimeout))
			var discard string
			if err := collect(rows, err, func() error { return nil }, &alone, &discard, &discard); err != nil || !alone {
				return err
			}
			return change(tx)
		})
		switch sqlState(err) {
		// No privilege; the partition already exists; the default partition has
		// rows of that day; the default partition has too many rows.
		case "42501", "42P07", "23514", "57014":
			if ctx.Err() == nil {
				return nil
			}
			return err
		case "55P03", "40P01": // another transaction holds the lock
			if attempt < dayAttempts {
				if err := pause(ctx, dayPause); err != nil {
					return err
				}
				continue
			}
		}
		return err
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
