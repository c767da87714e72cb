package soak

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// judge reads the tables and checks the run.
func (w *world) judge(ctx context.Context) (*Report, error) {
	c := newChecker(w.tally)
	for _, read := range []func(context.Context, *checker) error{w.readLedger, w.readEffects, w.readAccounts, w.readRequests} {
		if err := read(ctx, c); err != nil {
			return nil, fmt.Errorf("soak: the tables cannot be read, so there is no verdict: %w", w.store.Clean(err))
		}
	}
	c.finish()
	return w.report(c), nil
}

// query calls scan for every row.
func (w *world) query(ctx context.Context, query string, scan func(rows *sql.Rows) error) error {
	rows, err := w.store.SQL.QueryContext(ctx, w.names.fill(query))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (w *world) readLedger(ctx context.Context, c *checker) error {
	return w.query(ctx, `SELECT id, name, number, amount, topic, payload, headers, due_at, written_at FROM {ledger}`, func(rows *sql.Rows) error {
		var e entry
		var id string
		var payload, headers, due, at int64
		if err := rows.Scan(&id, &e.name, &e.number, &e.amount, &e.topic, &payload, &headers, &due, &at); err != nil {
			return err
		}
		var err error
		e.payload, e.headers, e.due, e.at = uint32(payload), uint32(headers), instant(due), instant(at) //nolint:gosec // stored as such
		if e.id, err = waybill.ParseID(id); err == nil {
			c.entry(e)
		}
		return err
	})
}

// instant is the inverse of nanos.
func instant(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

func (w *world) readEffects(ctx context.Context, c *checker) error {
	return w.query(ctx, `SELECT id, name, number, amount, place, applied_at FROM {effect} ORDER BY name, place`, func(rows *sql.Rows) error {
		var e effect
		var id string
		var at int64
		if err := rows.Scan(&id, &e.name, &e.number, &e.amount, &e.place, &at); err != nil {
			return err
		}
		var err error
		e.at = instant(at)
		if e.id, err = waybill.ParseID(id); err == nil {
			c.effect(e)
		}
		return err
	})
}

func (w *world) readAccounts(ctx context.Context, c *checker) error {
	return w.query(ctx, `SELECT name, n, total FROM {account}`, func(rows *sql.Rows) error {
		var name int
		var n, total int64
		if err := rows.Scan(&name, &n, &total); err != nil {
			return err
		}
		c.account(name, n, total)
		return nil
	})
}

func (w *world) readRequests(ctx context.Context, c *checker) error {
	return w.query(ctx, `SELECT name, answer FROM {request}`, func(rows *sql.Rows) error {
		var key string
		var answer int64
		if err := rows.Scan(&key, &answer); err != nil {
			return err
		}
		c.request(key, answer)
		return nil
	})
}
