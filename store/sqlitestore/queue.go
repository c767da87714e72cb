package sqlitestore

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill"
)

// queue is a set of tables with ready, delayed and dead events: those of the
// outbox, or the backlog of a destination.
type queue struct {
	store *backend
	sql   *queueStatements
	// base is the number that the tables add to the lane of a row: 0 for the
	// outbox.
	base int
}

func (q *queue) isBacklog() bool { return q.base != 0 }

// presentIn returns the ids that are pending, as the transaction sees them.
func (q *queue) presentIn(ctx context.Context, t target, ids []waybill.ID) (map[waybill.ID]bool, error) {
	found := make(map[waybill.ID]bool, len(ids))
	err := lists(ids, idArg, func(index int, args []any) error {
		rows, err := t.query(ctx, q.sql.present[index], args...)
		return eachRow(rows, err, func(rows *sql.Rows) error {
			var id waybill.ID
			if err := rows.Scan((*scanID)(&id)); err != nil {
				return err
			}
			found[id] = true
			return nil
		})
	})
	return found, err
}
