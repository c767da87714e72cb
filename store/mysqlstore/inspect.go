package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Stats implements [driver.Inspector]. All values come from one snapshot, and
// so from one moment.
func (s *backend) Stats(ctx context.Context) (store.Stats, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return store.Stats{}, s.explain(err)
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	st, err := readStats(ctx, tx, s.sql.stats)
	if err != nil {
		return store.Stats{}, s.explain(err)
	}
	if st.Membership, err = s.membership(ctx, tx, st.Now); err != nil {
		return store.Stats{}, s.explain(err)
	}
	return st, nil
}

// Members implements [driver.Members]. It reads without a transaction: a node
// or lane that changes meanwhile belongs to either moment.
func (s *backend) Members(ctx context.Context) (store.Stats, error) {
	var now int64
	if err := each(ctx, s.db, `SELECT `+micros+`UTC_TIMESTAMP(6))`, nil, nil, &now); err != nil {
		return store.Stats{}, s.explain(err)
	}
	st := store.Stats{Now: time.UnixMicro(now).UTC()}
	var err error
	if st.Membership, err = s.membership(ctx, s.db, st.Now); err != nil {
		return store.Stats{}, s.explain(err)
	}
	return st, nil
}

// readStats returns the counts of a queue.
func readStats(ctx context.Context, q querier, query string) (store.Stats, error) {
	var st store.Stats
	var now int64
	var oldest sql.NullInt64
	err := each(ctx, q, query, nil, nil, &now, &st.Ready, &oldest, &st.Scheduled, &st.Failed, &st.MaxAttempts, &st.Dead, &st.Holding)
	st.Now, st.Oldest = time.UnixMicro(now).UTC(), timeOf(oldest)
	return st, err
}

// membership returns the nodes that are live at the time now.
func (s *backend) membership(ctx context.Context, q querier, now time.Time) (store.Membership, error) {
	var m store.Membership
	var id scanID
	var relay, report []byte
	var expires sql.NullInt64
	err := each(ctx, q, fill(s.sql.nodes, "{now}", utc(now)), nil, func() {
		m.Nodes = append(m.Nodes, store.Node{ID: waybill.ID(id), Relay: string(relay), Report: string(report), Expires: timeOf(expires)})
	}, &id, &relay, &expires, &report)
	if err != nil {
		return m, err
	}
	var l store.LaneState
	err = each(ctx, q, fill(s.sql.lanes, "{now}", utc(now)), nil, func() {
		l.Owner = waybill.ID(id)
		m.Lanes = append(m.Lanes, l)
	}, &l.Lane, &id, &l.Live, &l.Epoch)
	return m, err
}

// timeOf converts a time as read from the database; NULL is the zero time.
func timeOf(at sql.NullInt64) time.Time {
	if !at.Valid {
		return time.Time{}
	}
	return time.UnixMicro(at.Int64).UTC()
}

// filtered returns the condition for rows of a state that match a filter, and
// its arguments. Columns are binary, so texts compare as bytes.
func (q *queue) filtered(state store.State, f store.Filter) (where string, args []any, err error) {
	if state < 0 || int(state) >= len(q.places) {
		return "", nil, fmt.Errorf("mysqlstore: unknown state %v", state)
	}
	if f.NoTenant {
		f.TenantID = ""
	}
	f.Failed = f.Failed && !f.Untried
	conditions := []string{`TRUE`}
	for _, field := range []struct{ column, text string }{
		{`type`, f.Type},
		{shownType, f.AggregateType},
		{`aggregate_id`, f.AggregateID},
		{`tenant_id`, f.TenantID},
		{`correlation_id`, f.CorrelationID},
		{q.places[state].cause, f.Cause},
	} {
		if field.text != "" {
			conditions, args = append(conditions, field.column+` = ?`), append(args, []byte(field.text))
		}
	}
	if f.NoTenant {
		conditions = append(conditions, `COALESCE(tenant_id, '') = ''`)
	}
	if f.Untried {
		conditions = append(conditions, q.places[state].attempts+` = 0`)
	}
	if f.Holding {
		conditions = append(conditions, q.places[state].holds+` = 1`)
	}
	if f.Failed {
		conditions = append(conditions, q.places[state].attempts+` > 0`)
	}
	if f.Error != "" {
		conditions = append(conditions, `LOCATE(?, CAST(`+q.places[state].failure+` AS BINARY)) > 0`)
		args = append(args, []byte(f.Error))
	}
	if !f.Since.IsZero() {
		conditions = append(conditions, q.places[state].at+` >= TIMESTAMP'`+utc(wholeMicro(f.Since))+`'`)
	}
	if !f.Until.IsZero() {
		conditions = append(conditions, q.places[state].at+` < TIMESTAMP'`+utc(wholeMicro(f.Until))+`'`)
	}
	return strings.Join(conditions, ` AND `), args, nil
}

// Count implements [driver.Inspector].
func (q *queue) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	where, args, err := q.filtered(state, f)
	if err != nil {
		return 0, err
	}
	var n int64
	if err := each(ctx, q.db, fill(fill(q.sql.count[state], "{fits}", where), "{index}", narrowed(state, f)), args, nil, &n); err != nil {
		return 0, q.explain(err)
	}
	return n, nil
}

// List implements [driver.Inspector]. Delayed and delivered rows have no index
// on seq alone: their tables are scanned.
func (q *queue) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	where, args, err := q.filtered(state, f)
	if err != nil {
		return nil, err
	}
	query := fill(fill(q.sql.list[state], "{fits}", where), "{after}", strconv.FormatInt(after, 10))
	query = fill(query, "{index}", cmp.Or(narrowed(state, f), q.places[state].index))
	records, err := q.records(ctx, fill(query, "{limit}", strconv.Itoa(max(limit, 0))), args...)
	slices.SortFunc(records, func(a, b store.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return records, err
}

// ListRecent implements [driver.Recent].
func (q *queue) ListRecent(ctx context.Context, f store.Filter, before waybill.ID, limit, scan int) (found []store.Record, floor waybill.ID, err error) {
	where, args, err := q.filtered(store.Delivered, f) // an error for a backlog
	if err != nil {
		return nil, floor, err
	}
	first := hexID(driver.BeforeID(before))
	if scan > 0 {
		var id scanID
		query := fill(fill(q.sql.recentFloor, "{before}", first), "{skip}", strconv.Itoa(scan-1))
		if err := each(ctx, q.db, query, nil, func() { floor = waybill.ID(id) }, &id); err != nil {
			return nil, waybill.ID{}, q.explain(err)
		}
	}
	query := fill(fill(fill(q.sql.recent, "{fits}", where), "{before}", first), "{floor}", hexID(floor))
	records, err := q.records(ctx, fill(query, "{limit}", strconv.Itoa(max(limit, 0))), args...)
	slices.SortFunc(records, func(a, b store.Record) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	return records, floor, err
}

// Find implements [driver.Inspector]. One statement reads all tables, so an
// event that moves is found in its old or its new table.
func (q *queue) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	return q.records(ctx, fill(q.sql.find, "{id}", hexID(id)))
}

// records reads whole rows with their state.
func (q *queue) records(ctx context.Context, query string, args ...any) ([]store.Record, error) {
	var records []store.Record
	var state store.State
	var ended sql.NullInt64
	var rec eventrow.Record
	final := false
	dest := append([]any{&state}, q.rowDest(&rec, &final, &ended)...)
	err := each(ctx, q.db, query, args, func() {
		record := store.Record{Row: rec.Decode(), State: state, EndedAt: timeOf(ended)}
		record.Final = final
		records = append(records, record)
		rec.Reset()
	}, dest...)
	if err != nil {
		return nil, q.explain(err)
	}
	return records, nil
}
