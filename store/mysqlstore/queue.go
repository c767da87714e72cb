package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/waybillhq/waybill/internal/eventrow"
)

// access is the database and the names of the tables.
type access struct {
	db  *sql.DB
	cfg Config
}

// queue reads and repairs the events that are ready, delayed or dead: those of
// the outbox, or those in the backlog of a destination. Lanes are numbered as
// in the tables.
type queue struct {
	access
	sql    *queueStatements
	places []place
	// final reports that every row has one more column: whether it has failed
	// for good.
	final bool
	// primaries are those of the store.
	primaries *primaries
	// The last Fetch of several lanes found many events.
	deep atomic.Bool
}

func (q *queue) init(db *sql.DB, cfg Config, l layout, p *primaries) {
	q.primaries = p
	q.access, q.sql, q.places, q.final = access{db, cfg}, newQueueStatements(cfg, l), l.places(), !l.isOutbox()
}

// rowDest returns the scan targets of a whole row, of the columns that follow
// it, and of final.
func (q *queue) rowDest(rec *eventrow.Record, final *bool, more ...any) []any {
	dest := append(rec.DelayedDest(), more...)
	if q.final {
		dest = append(dest, final)
	}
	return dest
}

// transact runs fn in a new transaction. A deadlock rolls everything back, and
// transact runs fn again: fn must start from scratch.
func (a *access) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	for round := 0; ; round++ {
		err := a.transactOnce(ctx, fn)
		if number(err) != errDeadlock || round == maxRounds {
			return a.explain(err)
		}
	}
}

// transactOnce works at READ COMMITTED: a read returns the current rows, and
// missing rows are not locked.
func (a *access) transactOnce(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// explain adds the package prefix, and the remedy where the server's message
// does not state it.
func (a *access) explain(err error) error {
	if err == nil {
		return nil
	}
	switch number(err) {
	case errNoDatabase, errNoTable, errNoRoutine:
		if strings.Contains(err.Error(), a.cfg.Prefix) || a.cfg.Schema != "" && strings.Contains(err.Error(), a.cfg.Schema) {
			return fmt.Errorf("mysqlstore: the tables are missing; call Migrate, or apply MigrationSQL with the mariadb shell: %w", err)
		}
	case errTableChanged:
		return fmt.Errorf("mysqlstore: a migration or SetLanes changed the tables after the transaction began; run the transaction again: %w", err)
	case errDeadlock:
		return fmt.Errorf("mysqlstore: a deadlock ended the transaction; run the transaction again: %w", err)
	}
	return fmt.Errorf("mysqlstore: %w", err)
}
