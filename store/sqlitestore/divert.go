package sqlitestore

import (
	"context"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// diversionItem is the arguments of one diversion.
const diversionItem = "(?, ?, ?, ?, ?, ?)"

// divert returns a statement that copies events from a table to backlogs.
// replay is their replay number. An event whose id is already ready in a
// backlog was delivered and then written again, and waits there once. Unique id
// of outbox, or primary key of delayed.
func divert(replay, table string) string {
	return `WITH diverted(event, base, tried, next_at, given_up, error) AS (VALUES LIST)
INSERT INTO {backlog} (lane, seq, ` + eventColumns + `, created_at, replay, available_at, attempts, final, last_error)
SELECT e.lane + base, seq, ` + eventColumns + `, created_at, ` + replay + `, next_at, tried, given_up, error
FROM diverted CROSS JOIN ` + table + ` AS e ON e.id = event WHERE true
ON CONFLICT (id, lane) DO NOTHING`
}

// divertOnly keeps the diversions to registered destinations. A destination
// cannot be removed before this transaction ends.
func (w *settling) divertOnly(ctx context.Context, diversions []driver.Diversion) error {
	if len(diversions) == 0 {
		return nil
	}
	registered, err := w.queue.store.destinations(ctx, w.t)
	if err != nil {
		return err
	}
	for _, d := range diversions {
		if slices.ContainsFunc(registered, func(r store.Destination) bool { return r.Number == d.Destination }) {
			w.diverted = append(w.diverted, d)
		}
	}
	return nil
}

// divert copies those of the events that are in one table to the backlogs that
// the settlement names.
func (w *settling) divert(ctx context.Context, ids []waybill.ID, statements []*statement) error {
	if len(w.diverted) == 0 {
		return nil
	}
	leaving := make(map[waybill.ID]bool, len(ids))
	for _, id := range ids {
		leaving[id] = true
	}
	var list []driver.Diversion
	for _, d := range w.diverted {
		if leaving[d.ID] {
			list = append(list, d)
		}
	}
	var args []any
	for len(list) > 0 {
		index, n := pick(len(list))
		args = args[:0]
		for _, d := range list[:n] {
			var next any
			if d.Delay > 0 {
				next = micros(w.now.Add(d.Delay))
			}
			args = append(args, d.ID[:], sqlstore.BaseLane(d.Destination), d.Attempts, next, d.Final, errorText(d.Error))
		}
		if _, err := w.t.exec(ctx, statements[index], args...); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// redate sets the delivery time of done events in the history.
func (w *settling) redate(ctx context.Context) error {
	return lists(w.moved, idArg, func(index int, args []any) error {
		_, err := w.t.exec(ctx, w.queue.store.sql.redate[index], append([]any{micros(w.now)}, args...)...)
		return err
	})
}
