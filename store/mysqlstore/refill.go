package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// pastEvent is a delivered event.
type pastEvent struct {
	number int64 // its primary key
	at     int64 // the time of the delivery, in microseconds since 1970
	id     waybill.ID
	// there reports that the backlog has a row of the event.
	there bool
}

// Refill implements [driver.Backlog]. The transaction pins the registration of
// the destination and the number of lanes. Another refill that copies one of
// the events at the same time makes the transaction start over.
func (b *backlog) Refill(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
	var out driver.Refilled
	for round := 0; ; round++ {
		err := b.queue.transact(ctx, func(tx *sql.Tx) (err error) {
			if out, err = b.refill(ctx, tx, q, after, max(limit, 0)); err != nil {
				return err
			}
			return b.queue.addAudit(ctx, tx, int64(out.Copied))
		})
		switch {
		case err == nil:
			return out, nil
		case number(err) != errDuplicate || round == maxRounds:
			return driver.Refilled{Next: after}, err
		}
	}
}

func (b *backlog) refill(ctx context.Context, tx querier, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
	out := driver.Refilled{Next: after}
	found := 0
	if err := each(ctx, tx, b.store.sql.pinNumber, []any{b.number}, nil, &found); err != nil {
		return out, err
	}
	if found == 0 {
		return out, noDestination("number " + strconv.Itoa(b.number))
	}
	events, err := b.past(ctx, tx, q, after, limit)
	if err != nil || len(events) == 0 {
		return out, err
	}
	last := events[len(events)-1]
	out.Matched, out.Next = len(events), driver.HistoryCursor{At: time.UnixMicro(last.at).UTC(), ID: last.id}
	var lanes int
	if err := each(ctx, tx, b.store.sql.readSetting, []any{"lanes"}, nil, &lanes); err != nil {
		return out, err
	}
	for part := range parts(missing(events), maxIDs) {
		query := fill(withLanes(b.own.refill, lanes), "{numbers}", strings.Join(part, ", "))
		n, err := affected(tx.ExecContext(ctx, query))
		if err != nil {
			return out, err
		}
		out.Copied += int(n)
	}
	return out, nil
}

// missing returns the primary keys of the events that have no row in the
// backlog. The history can have an id more than once.
func missing(events []pastEvent) []string {
	var numbers []string
	seen := make(map[waybill.ID]bool, len(events))
	for _, e := range events {
		if !e.there && !seen[e.id] {
			numbers = append(numbers, strconv.FormatInt(e.number, 10))
		}
		seen[e.id] = true
	}
	return numbers
}

// past returns the first events of the history after a cursor, in the order of
// delivery time and id. Fewer events than the limit are all that exist.
func (b *backlog) past(ctx context.Context, tx querier, q driver.HistoryQuery, after driver.HistoryCursor, limit int) ([]pastEvent, error) {
	fits, args := pastFilter(q)
	if !after.At.IsZero() {
		at := utc(after.At)
		fits += ` AND o.done_at >= TIMESTAMP'` + at + `' AND (o.done_at > TIMESTAMP'` + at + `' OR o.id > x'` + hexID(after.ID) + `')`
	}
	for range maxRounds {
		events, whole, err := b.somePast(ctx, tx, fits, args, limit)
		if err != nil || whole {
			return events, err
		}
	}
	return nil, errors.New("refill: other sessions keep changing the history")
}

// somePast reads once. The index has the order of the time only, so a second
// read sorts the events of the last time, which are those of one settlement.
// somePast reports false if some of these were changed between the reads.
func (b *backlog) somePast(ctx context.Context, tx querier, fits string, args []any, limit int) (events []pastEvent, whole bool, err error) {
	events, err = b.readPast(ctx, tx, fits, args, "o.done_at", limit)
	if err != nil || len(events) < limit || limit == 0 {
		return sortPast(events), true, err
	}
	last := events[len(events)-1].at
	events = events[:slices.IndexFunc(events, func(e pastEvent) bool { return e.at == last })]
	at := utc(time.UnixMicro(last))
	more, err := b.readPast(ctx, tx, fits+` AND o.done_at = TIMESTAMP'`+at+`'`, args, "o.id", limit-len(events))
	events = append(events, more...)
	return sortPast(events), len(events) == limit, err
}

func (b *backlog) readPast(ctx context.Context, tx querier, fits string, args []any, order string, limit int) ([]pastEvent, error) {
	var events []pastEvent
	var e pastEvent
	query := fill(fill(fill(b.own.past, "{fits}", fits), "{order}", order), "{limit}", strconv.Itoa(limit))
	err := each(ctx, tx, query, args, func() { events = append(events, e) }, &e.number, &e.at, (*scanID)(&e.id), &e.there)
	return events, err
}

func sortPast(events []pastEvent) []pastEvent {
	slices.SortStableFunc(events, func(a, b pastEvent) int { return cmp.Or(cmp.Compare(a.at, b.at), bytes.Compare(a.id[:], b.id[:])) })
	return events
}

// pastFilter returns the condition for delivered events that match a query, and
// its arguments. Columns are binary, so texts compare as bytes.
func pastFilter(q driver.HistoryQuery) (where string, args []any) {
	conditions := []string{`TRUE`}
	for _, bound := range []struct {
		at time.Time
		is string
	}{{q.Since, `>=`}, {q.Until, `<`}} {
		if !bound.at.IsZero() {
			conditions = append(conditions, `o.done_at `+bound.is+` TIMESTAMP'`+utc(wholeMicro(bound.at))+`'`)
		}
	}
	for _, field := range []struct {
		column string
		values []string
	}{{`o.type`, q.Types}, {shownType, q.AggregateTypes}, {`COALESCE(o.tenant_id, '')`, q.Tenants}} {
		if len(field.values) == 0 {
			continue
		}
		conditions = append(conditions, field.column+` IN (`+marks(len(field.values))+`)`)
		for _, value := range field.values {
			args = append(args, []byte(value))
		}
	}
	if q.AggregateID != "" {
		conditions, args = append(conditions, `o.aggregate_id = ?`), append(args, []byte(q.AggregateID))
	}
	return strings.Join(conditions, ` AND `), args
}

// wholeMicro rounds a bound up to a time that the tables can store.
func wholeMicro(at time.Time) time.Time { return sqlstore.WholeMicrosecond(eventrow.Clamp(at)) }

// CountHistory implements [driver.Backlog].
func (b *backlog) CountHistory(ctx context.Context, q driver.HistoryQuery) (int64, error) {
	fits, args := pastFilter(q)
	var n int64
	if err := each(ctx, b.queue.db, fill(b.store.sql.countHistory, "{fits}", fits), args, nil, &n); err != nil {
		return 0, b.queue.explain(err)
	}
	return n, nil
}
