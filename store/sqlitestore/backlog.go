package sqlitestore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// backlog implements [driver.Backlog]. Its rows are in one lane of the tables
// that all backlogs share.
type backlog struct {
	queue
	number int
	sql    *backlogStatements
}

var (
	_ driver.Backlog = (*backlog)(nil)
	_ driver.Causes  = (*backlog)(nil)
)

// backlogs are the backlogs that were used, by number. Their statements name
// the lane of the destination.
type backlogs struct {
	mu   sync.Mutex
	used map[int]*backlog
}

// Backlog implements [driver.Backlogs].
func (s *backend) Backlog(number int) driver.Backlog {
	s.backlogs.mu.Lock()
	defer s.backlogs.mu.Unlock()
	b := s.backlogs.used[number]
	if b == nil {
		stmts := newBacklogStatements(s.cfg.backlogReplacer(number))
		b = &backlog{number: number, sql: stmts, queue: queue{store: s, sql: &stmts.queueStatements, base: sqlstore.BaseLane(number)}}
		if s.backlogs.used == nil {
			s.backlogs.used = make(map[int]*backlog)
		}
		s.backlogs.used[number] = b
	}
	return b
}

// statements returns all statements that may be prepared.
func (s *backend) statements() []*statement {
	s.backlogs.mu.Lock()
	defer s.backlogs.mu.Unlock()
	all := s.sql.all[:len(s.sql.all):len(s.sql.all)]
	for _, b := range s.backlogs.used {
		all = append(all, b.sql.all...)
	}
	return all
}

// Settle implements [driver.Settler]. The lane of the outbox is the fence.
func (b *backlog) Settle(ctx context.Context, set driver.Settlement) (driver.Settled, error) {
	var out driver.Settled
	err := b.store.within(ctx, func(ctx context.Context, t txTarget) error {
		var err error
		if out.Held, err = b.store.heldLanes(ctx, t, set.Leases); err != nil || len(out.Held) == 0 {
			return err
		}
		out.Moved, err = b.settle(ctx, t, out.Held, set)
		return err
	})
	if err != nil {
		return driver.Settled{}, err
	}
	return out, nil
}

// Occupied implements [driver.Backlog].
func (b *backlog) Occupied(ctx context.Context) ([]int, error) {
	if err := b.store.ready(ctx, b.store.db); err != nil {
		return nil, err
	}
	var occupied bool
	rows, err := b.store.query(ctx, b.sql.occupied)
	if _, err := scanOne(rows, err, &occupied); err != nil {
		return nil, b.store.explain(err)
	}
	if !occupied {
		return nil, nil
	}
	return []int{onlyLane}, nil
}

// PurgeDead implements [driver.Backlog].
func (b *backlog) PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("sqlitestore: %w", err)
	}
	var purged int64
	err := b.store.within(ctx, func(ctx context.Context, t txTarget) error {
		var err error
		if purged, err = affected(t.exec(ctx, b.sql.purgeDead, micros(clock().Add(-age)), max(limit, 0))); err != nil {
			return err
		}
		return b.store.note(ctx, t, purged)
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}
