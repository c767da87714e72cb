package shop

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill/outbox"
)

// journal records the external view: the responses to customers, and the
// faults. It is not part of the shop and must not slow it down: concurrent
// lines are written in one transaction.
type journal struct {
	box *outbox.Outbox[*sql.Tx]

	mu      sync.Mutex
	lines   []line
	wake    chan struct{}
	written sync.Cond // of mu: signals that lines have been written
	busy    bool
	ended   bool
	failed  error
}

type line struct {
	sql  string
	args []any
}

func newJournal(box *outbox.Outbox[*sql.Tx]) *journal {
	j := &journal{box: box, wake: make(chan struct{}, 1)}
	j.written.L = &j.mu
	return j
}

// write adds a line. It does not block.
func (j *journal) write(statement string, args ...any) {
	j.mu.Lock()
	j.lines = append(j.lines, line{statement, args})
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// run writes lines until ctx ends, and then the remaining ones.
func (j *journal) run(ctx context.Context) error {
	defer func() {
		j.mu.Lock()
		j.ended = true
		j.mu.Unlock()
		j.written.Broadcast()
	}()
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
			return j.store(context.WithoutCancel(ctx))
		}
		if err := j.store(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
}

func (j *journal) store(ctx context.Context) error {
	j.mu.Lock()
	lines := j.lines
	j.lines, j.busy = nil, true
	j.mu.Unlock()
	var err error
	if len(lines) > 0 {
		err = j.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			for _, l := range lines {
				if _, err := tx.ExecContext(ctx, l.sql, l.args...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		err = fmt.Errorf("demo: the journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.busy, j.failed = false, err
	j.written.Broadcast()
	return err
}

// flush returns when all earlier lines are in the tables, or the journal has
// ended.
func (j *journal) flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for (len(j.lines) > 0 || j.busy) && !j.ended {
		j.written.Wait()
	}
	return j.failed
}
