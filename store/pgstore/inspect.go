package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// countRows returns, by kind: 0 the clock, 1 ready rows and the creation time
// of the oldest, 2 to 6 counts, 7 live nodes with the ends of their leases, 8
// lanes. The oldest row is the first of some lane: primary key of outbox (lane,
// seq), once per lane. Two counts of the dead rows read indexes only,
// dead_seq_idx and dead_holds_idx: one count would read the rows.
const countRows = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
live AS MATERIALIZED (SELECT n.id, n.relay, n.expires_at, n.report FROM {node} n, clock WHERE n.expires_at > clock.now),
late AS MATERIALIZED (
  SELECT count(*) AS n, count(*) FILTER (WHERE attempts > 0) AS failed, count(*) FILTER (WHERE holds) AS holding,
    coalesce(max(attempts), 0) AS attempts FROM {delayed}
), buried AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT FROM {dead} {bound}) AS d) AS n, (SELECT count(*) FROM {dead} WHERE holds) AS holding)
SELECT 0 AS kind, 0 AS lane, 0::bigint AS n, now AS at, NULL::uuid AS id, '' AS relay, false AS live, '' AS report FROM clock
UNION ALL SELECT 1, 0, (SELECT count(*) FROM {outbox}), (
  SELECT min(o.created_at) FROM {lane} l
  CROSS JOIN LATERAL (SELECT created_at FROM {outbox} o WHERE o.lane = l.lane ORDER BY o.seq LIMIT 1) AS o
), NULL, '', false, ''
UNION ALL SELECT 2, 0, n - failed, NULL, NULL, '', false, '' FROM late
UNION ALL SELECT 3, 0, failed, NULL, NULL, '', false, '' FROM late
UNION ALL SELECT 4, 0, n, NULL, NULL, '', false, '' FROM buried
UNION ALL SELECT 5, 0, late.holding + buried.holding, NULL, NULL, '', false, '' FROM late, buried
UNION ALL SELECT 6, 0, attempts, NULL, NULL, '', false, '' FROM late
UNION ALL SELECT 7, 0, 0, expires_at, id, relay, true, coalesce(report, '') FROM live
UNION ALL SELECT 8, l.lane, l.epoch, NULL, l.owner, '', EXISTS (SELECT FROM live WHERE live.id = l.owner), '' FROM {lane} l
ORDER BY kind, lane, id`

// readMembers returns the rows of the kinds 0, 7 and 8 of countRows.
const readMembers = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
live AS MATERIALIZED (SELECT n.id, n.relay, n.expires_at, n.report FROM {node} n, clock WHERE n.expires_at > clock.now)
SELECT 0 AS kind, 0 AS lane, 0::bigint AS n, now AS at, NULL::uuid AS id, '' AS relay, false AS live, '' AS report FROM clock
UNION ALL SELECT 7, 0, 0, expires_at, id, relay, true, coalesce(report, '') FROM live
UNION ALL SELECT 8, l.lane, l.epoch, NULL, l.owner, '', EXISTS (SELECT FROM live WHERE live.id = l.owner), '' FROM {lane} l
ORDER BY kind, lane, id`

// recordColumns returns readColumns and the additional columns of a row in a
// state.
func recordColumns(state store.State) string {
	switch state {
	case store.Ready:
		return readColumns + `, available_at, 0, 0, false, '', now(), NULL::timestamptz`
	case store.Delayed:
		return readColumns + `, due_at, attempts, replay, holds, coalesce(last_error, ''), now(), NULL::timestamptz`
	case store.Dead:
		return readColumns + `, NULL::timestamptz, attempts, replay, holds, coalesce(last_error, ''), now(), died_at`
	case store.Delivered:
		return readColumns + `, NULL::timestamptz, attempts, replay, false, '', now(), done_at`
	}
	return ""
}

// tableOf returns the table of a state.
func tableOf(state store.State) string {
	switch state {
	case store.Ready:
		return "{outbox}"
	case store.Delayed:
		return "{delayed}"
	case store.Dead:
		return "{dead}"
	case store.Delivered:
		return "{history}"
	}
	return ""
}

// fits returns the condition of a filter: $1 to $4 are texts, $5 is Holding, $6
// is Failed, $7 and $8 are times, $9 to $11 are texts. An empty field matches
// all rows. $4 is NULL for rows without a tenant, and $6 for rows that were
// never attempted.
func fits(state store.State) string {
	switch state {
	case store.Ready:
		return fitsWith("NOT $5::boolean", "$6::boolean IS NOT TRUE", "created_at", noError, noCause)
	case store.Delayed:
		return fitsWith(holding, tried, "created_at", hasError, noCause)
	case store.Dead:
		return fitsWith(holding, tried, "died_at", hasError, hasCause)
	case store.Delivered:
		return fitsWith("NOT $5::boolean", tried, "done_at", noError, noCause)
	}
	return ""
}

// Conditions of a filter.
const (
	holding  = "(NOT $5::boolean OR holds)"
	tried    = "CASE WHEN $6::boolean IS NULL THEN attempts = 0 ELSE NOT $6::boolean OR attempts > 0 END"
	hasError = "($9::text = '' OR strpos(last_error, $9) > 0)"
	noError  = "$9::text = ''"
	hasCause = "($11::text = '' OR cause = $11)"
	noCause  = "$11::text = ''"
	since    = "($7::timestamptz IS NULL OR {at} >= $7)"
)

// fitsWith is fits with conditions, and with the column of the time.
func fitsWith(holds, failed, at, failure, cause string) string {
	return strings.ReplaceAll(`($1::text = '' OR type = $1) AND ($2::text = '' OR `+aggregateType+` = $2) AND ($3::text = '' OR aggregate_id = $3)
  AND ($4::text = '' OR coalesce(tenant_id, '') = coalesce($4::text, '')) AND `+holds+` AND `+failed+` AND `+since+`
  AND ($8::timestamptz IS NULL OR {at} < $8) AND `+failure+` AND ($10::text = '' OR correlation_id = $10) AND `+cause, "{at}", at)
}

// listStatements read rows after a seq. Ready rows are read lane by lane, by
// the primary key (lane, seq), and dead rows by dead_seq_idx. The other tables
// have no such index, because listing them is rare and writing to them is
// frequent.
func listStatements(r func(string) string) map[store.State]string {
	out := make(map[store.State]string)
	for _, state := range []store.State{store.Delayed, store.Dead, store.Delivered} {
		out[state] = r(`SELECT ` + recordColumns(state) + ` FROM ` + tableOf(state) + ` WHERE seq > $12::bigint AND ` + fits(state) + ` ORDER BY seq LIMIT $13`)
	}
	out[store.Ready] = r(`SELECT ` + recordColumns(store.Ready) + ` FROM (SELECT lane AS l FROM {lane}) AS c
CROSS JOIN LATERAL (SELECT * FROM {outbox} WHERE lane = c.l AND seq > $12::bigint AND ` + fits(store.Ready) + ` ORDER BY seq LIMIT $13) AS r
ORDER BY seq LIMIT $13`)
	return out
}

// The fields of a filter that dead letters have an index for.
const (
	byType = iota
	byAggregate
	byCause
	bySince
	narrowed
)

// listing are the statements that list and count.
type listing struct{ list, count string }

// narrows are the conditions of fits that select by the fields, and those that
// use the index.
var narrows = [narrowed][2]string{
	byType:      {`($1::text = '' OR type = $1)`, `type = $1::text`},
	byAggregate: {`($3::text = '' OR aggregate_id = $3)`, `aggregate_id = $3::text`},
	byCause:     {hasCause, `cause = $11::text`},
	bySince:     {strings.ReplaceAll(since, "{at}", "died_at"), `died_at >= $7::timestamptz`},
}

// fitsBy is fits for a filter with a field that has an index: a plan for all
// filters would not use the index.
func fitsBy(field int) string {
	return strings.Replace(fits(store.Dead), narrows[field][0], narrows[field][1], 1)
}

// deadStatements list and count the dead letters of one type, aggregate or
// cause, or those since a time: dead_type_idx (type, seq), dead_aggregate_idx
// (aggregate_id, seq), dead_cause_idx (cause, seq), dead_died_idx. own is
// the condition of the rows of a backlog, whose indexes begin with lane >> 10,
// and columns are the columns of a dead letter.
func deadStatements(r func(string) string, own, columns string) (out [narrowed]listing) {
	for by := range out {
		where := ` FROM {dead} WHERE ` + own + ` AND ` + fitsBy(by)
		out[by].count = r(`SELECT count(*)` + where)
		out[by].list = r(`SELECT ` + columns + where + ` AND seq > $12::bigint ORDER BY seq LIMIT $13`)
	}
	return out
}

// listing returns the statements for a filter; empty for an unknown state.
func (s *statements) listing(state store.State, f store.Filter) listing {
	switch {
	case state != store.Dead:
	case f.AggregateID != "":
		return s.deadBy[byAggregate]
	case f.Type != "":
		return s.deadBy[byType]
	case f.Cause != "":
		return s.deadBy[byCause]
	case !f.Since.IsZero():
		return s.deadBy[bySince]
	}
	return listing{s.list[state], s.count[state]}
}

// listRecent reads delivered rows from the highest id on, down to $14:
// history_id_idx of every partition.
func listRecent() string {
	return `SELECT ` + recordColumns(store.Delivered) + ` FROM {history} WHERE id < $12::uuid AND id >= $14::uuid AND ` + fits(store.Delivered) + ` ORDER BY id DESC LIMIT $13`
}

// recentFloor finds the id below which a search of delivered rows ends: index
// history_id_idx of every partition.
const recentFloor = `SELECT id FROM {history} WHERE id < $1::uuid ORDER BY id DESC LIMIT 1 OFFSET $2`

func countStatements(r func(string) string) map[store.State]string {
	out := make(map[store.State]string)
	for _, state := range states {
		out[state] = r(`SELECT count(*) FROM ` + tableOf(state) + ` WHERE ` + fits(state))
	}
	return out
}

var states = []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered}

// findEvent searches all tables. Unique id of outbox, primary keys of delayed
// and dead, history_id_idx.
func findEvent() string {
	query := ""
	for i, state := range states {
		if i > 0 {
			query += "\nUNION ALL "
		}
		query += `SELECT ` + recordColumns(state) + `, ` + strconv.Itoa(int(state)) + ` FROM ` + tableOf(state) + ` WHERE id = $1::uuid`
	}
	return query
}

// Stats implements [driver.Inspector].
func (c *core) Stats(ctx context.Context) (store.Stats, error) { return c.readStats(ctx, c.sql.stats) }

// StatsUpTo implements [driver.Bounded].
func (c *core) StatsUpTo(ctx context.Context, most int64) (store.Stats, error) {
	return c.readStats(ctx, c.sql.statsUpTo, most)
}

// boundStats returns a statement that counts dead rows up to $1, and one that
// counts all.
func boundStats(query string) (upTo, all string) {
	return strings.Replace(query, "{bound}", "LIMIT $1::bigint", 1), strings.Replace(query, "{bound}", "", 1)
}

// Members implements [driver.Members].
func (c *core) Members(ctx context.Context) (store.Stats, error) {
	return c.readStats(ctx, c.sql.members)
}

// readStats reads rows of the kinds of countRows.
func (c *core) readStats(ctx context.Context, query string, args ...any) (store.Stats, error) {
	var s store.Stats
	var kind, lane int
	var n int64
	var at instant
	var id waybill.ID
	var relay, report string
	var live bool
	rows, err := c.db.query(ctx, query, args...)
	err = collect(rows, err, func() error {
		switch kind {
		case 0:
			s.Now = time.Time(at)
		case 1:
			s.Ready = n
			s.Oldest = time.Time(at)
		case 2:
			s.Scheduled = n
		case 3:
			s.Failed = n
		case 4:
			s.Dead = n
		case 5:
			s.Holding = n
		case 6:
			s.MaxAttempts = int(n)
		case 7:
			s.Nodes = append(s.Nodes, store.Node{ID: id, Relay: relay, Report: report, Expires: time.Time(at)})
		case 8:
			s.Lanes = append(s.Lanes, store.LaneState{Lane: lane, Owner: id, Live: live, Epoch: n})
		}
		return nil
	}, &kind, &lane, &n, &at, c.db.scanID(&id), &relay, &live, &report)
	if err != nil {
		return store.Stats{}, c.explain(err)
	}
	return s, nil
}

// filterArgs returns the arguments of fits.
func filterArgs(f store.Filter) []any {
	var tenant, failed any = f.TenantID, f.Failed
	if f.NoTenant {
		tenant = nil
	}
	if f.Untried {
		failed = nil
	}
	return []any{f.Type, f.AggregateType, f.AggregateID, tenant, f.Holding, failed, boundOrNull(f.Since), boundOrNull(f.Until), f.Error, f.CorrelationID, f.Cause}
}

// Count implements [driver.Inspector].
func (c *core) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	query := c.sql.listing(state, f).count
	if query == "" {
		return 0, fmt.Errorf("pgstore: unknown state %v", state)
	}
	var n int64
	rows, err := c.db.query(ctx, query, filterArgs(f)...)
	return n, c.explain(collect(rows, err, func() error { return nil }, &n))
}

// List implements [driver.Inspector].
func (c *core) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
	query := c.sql.listing(state, f).list
	if query == "" {
		return nil, fmt.Errorf("pgstore: unknown state %v", state)
	}
	return c.records(ctx, &state, nil, query, append(filterArgs(f), after, limit)...)
}

// ListRecent implements [driver.Recent].
func (c *core) ListRecent(ctx context.Context, f store.Filter, before waybill.ID, limit, scan int) (found []store.Record, floor waybill.ID, err error) {
	before = driver.BeforeID(before)
	if scan > 0 {
		rows, err := c.db.query(ctx, c.sql.recentFloor, before.UUID(), scan-1)
		if err := collect(rows, err, func() error { return nil }, c.db.scanID(&floor)); err != nil {
			return nil, waybill.ID{}, c.explain(err)
		}
	}
	state := store.Delivered
	found, err = c.records(ctx, &state, nil, c.sql.recent, append(filterArgs(f), before.UUID(), max(limit, 0), floor.UUID())...)
	return found, floor, err
}

// Find implements [driver.Inspector].
func (c *core) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	var state store.State
	return c.records(ctx, &state, []any{&state}, c.sql.find, id.UUID())
}

// records reads rows of recordColumns and the columns after them. state is the
// state of the row that was read last.
func (c *core) records(ctx context.Context, state *store.State, behind []any, query string, args ...any) ([]store.Record, error) {
	var out []store.Record
	var rec record
	var ended instant
	rows, err := c.db.query(ctx, query, args...)
	err = collect(rows, err, func() error {
		out = append(out, store.Record{Row: rec.decode(), State: *state, EndedAt: time.Time(ended)})
		return nil
	}, slices.Concat(rec.dest(c.db), []any{&ended}, c.final(&rec), behind)...)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}
