package pgstore

import (
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// backlogStatements are the statements that only a backlog has.
type backlogStatements struct {
	occupied, lockRefill, refill, countHistory string
}

// The conditions on the lanes of a destination. ofDestination is what the
// indexes that list dead letters begin with. ownLanes can be a range of an
// index that begins with the lane. theLane compares the lanes as integers, for
// which there is no index, so that rows are found by the other conditions: by
// id, with the unique (id, lane), which has one row per destination.
const (
	ofDestination = `lane >> 10 = {number}`
	ownLanes      = `lane BETWEEN {low} AND {high}`
	theLane       = `lane::integer BETWEEN {low} AND {high}`
)

// backlogColumns are the columns of a ready row r of a backlog, with the column
// of record.final.
const backlogColumns = readColumns + `, r.available_at, coalesce(r.attempts, 0), coalesce(r.replay, 0), false, coalesce(r.last_error, ''), now(),
 coalesce(r.final, false)` + readTimeline

// newBacklogStatements returns the statements of a destination's backlog. The
// names are those of Config.backlogReplacer. Reads and settlements are the
// statements of the outbox: their lanes are arguments, and the tables have the
// indexes that they need.
func newBacklogStatements(names *strings.Replacer) statements {
	r := names.Replace
	upTo, all := boundStats(countBacklog)
	return statements{
		fetch: r(fetchRows(backlogColumns)),
		sweep: r(sweepKeys),
		load:  r(loadRows(backlogColumns)),
		due:   r(dueRows),

		holds:  r(holdingRows),
		follow: r(followAggregate(backlogColumns)),
		urgent: r(urgentKeys),
		plain:  r(plainRows),

		settle: backlogSettleStatements(r),

		stats: r(all), statsUpTo: r(upTo),
		find:  r(findInBacklog()),
		list:  backlogLists(r),
		count: backlogCounts(r), deadBy: deadStatements(r, ofDestination, backlogRecord(store.Dead)),

		replay:  r(replayBacklog()),
		discard: r(discardBacklog),
		unblock: r(unblockBacklog),
		purge:   map[store.State]string{store.Dead: r(purgeBacklog)},

		noteAudit: r(noteAudit),

		causeStatements: newCauseStatements(r, "lane >> 10 = {number}", backlogRecord(store.Dead)),

		backlogStatements: backlogStatements{
			occupied:     r(occupiedLanes),
			lockRefill:   r(lockRefill),
			refill:       r(strings.NewReplacer("{events}", eventColumns, "{lane_now}", laneNow).Replace(refillBacklog)),
			countHistory: r(countHistory),
		},
	}
}

// countBacklog returns rows of the kinds 0 to 6 of countRows. Primary keys, due
// index and holds index of the tables, by their lanes; backlog_tried_idx (lane)
// where attempts > 0; backlog_dead_seq_idx (lane >> 10, seq). The oldest row is
// the first of some lane.
const countBacklog = `WITH late AS MATERIALIZED (
  SELECT count(*) AS n, count(*) FILTER (WHERE attempts > 0) AS failed, count(*) FILTER (WHERE holds) AS holding,
    coalesce(max(attempts), 0) AS attempts FROM {delayed} WHERE ` + ownLanes + `
), buried AS MATERIALIZED (
  SELECT (SELECT count(*) FROM (SELECT FROM {dead} WHERE ` + ofDestination + ` {bound}) AS d) AS n,
    (SELECT count(*) FROM {dead} WHERE ` + ownLanes + ` AND holds) AS holding
), tried AS MATERIALIZED (
  SELECT coalesce(max(attempts), 0) AS attempts FROM {outbox} WHERE ` + ownLanes + ` AND attempts > 0
)
SELECT 0 AS kind, 0 AS lane, 0::bigint AS n, clock_timestamp() AS at, NULL::uuid AS id, '' AS relay, false AS live, '' AS report
UNION ALL SELECT 1, 0, (SELECT count(*) FROM {outbox} WHERE ` + ownLanes + `), (
  SELECT min(o.created_at) FROM {lane} l
  CROSS JOIN LATERAL (SELECT created_at FROM {outbox} o WHERE o.lane = l.lane + {low} ORDER BY o.seq LIMIT 1) AS o
), NULL, '', false, ''
UNION ALL SELECT 2, 0, n - failed, NULL, NULL, '', false, '' FROM late
UNION ALL SELECT 3, 0, failed, NULL, NULL, '', false, '' FROM late
UNION ALL SELECT 4, 0, n, NULL, NULL, '', false, '' FROM buried
UNION ALL SELECT 5, 0, late.holding + buried.holding, NULL, NULL, '', false, '' FROM late, buried
UNION ALL SELECT 6, 0, greatest(late.attempts, tried.attempts), NULL, NULL, '', false, '' FROM late, tried`

// backlogStates are the states of the rows of a backlog.
var backlogStates = []store.State{store.Ready, store.Delayed, store.Dead}

// backlogRecord is recordColumns with the column of record.final.
func backlogRecord(state store.State) string {
	if state == store.Ready {
		return readColumns + `, available_at, attempts, replay, false, coalesce(last_error, ''), now(), NULL::timestamptz, final`
	}
	return recordColumns(state) + `, false`
}

// fitsBacklog is fits for the rows of a backlog, of which ready rows can have
// attempts.
func fitsBacklog(state store.State) string {
	if state == store.Ready {
		return fitsWith("NOT $5::boolean", tried, "created_at", hasError, noCause)
	}
	return fits(state)
}

// backlogLists read rows after a seq: ready rows lane by lane, by the primary
// key (lane, seq, id), dead rows by backlog_dead_seq_idx (lane >> 10, seq), and
// deferred rows by the lanes of backlog_delayed_due_idx.
func backlogLists(r func(string) string) map[store.State]string {
	list := func(state store.State, lanes string) string {
		return r(`SELECT ` + backlogRecord(state) + ` FROM ` + tableOf(state) + ` WHERE ` + lanes + ` AND seq > $12::bigint AND ` +
			fitsBacklog(state) + ` ORDER BY seq LIMIT $13`)
	}
	return map[store.State]string{
		store.Delayed: list(store.Delayed, ownLanes),
		store.Dead:    list(store.Dead, ofDestination),
		store.Ready: r(`SELECT ` + backlogRecord(store.Ready) + ` FROM (SELECT lane + {low} AS l FROM {lane}) AS c
CROSS JOIN LATERAL (SELECT * FROM {outbox} WHERE lane = c.l AND seq > $12::bigint AND ` + fitsBacklog(store.Ready) + ` ORDER BY seq LIMIT $13) AS r
ORDER BY seq LIMIT $13`),
	}
}

func backlogCounts(r func(string) string) map[store.State]string {
	out := make(map[store.State]string)
	for _, state := range backlogStates {
		lanes := ownLanes
		if state == store.Dead {
			lanes = ofDestination
		}
		out[state] = r(`SELECT count(*) FROM ` + tableOf(state) + ` WHERE ` + lanes + ` AND ` + fitsBacklog(state))
	}
	return out
}

// findInBacklog searches the three tables by their unique (id, lane).
func findInBacklog() string {
	var queries []string
	for _, state := range backlogStates {
		queries = append(queries, `SELECT `+backlogRecord(state)+`, `+strconv.Itoa(int(state))+` FROM `+tableOf(state)+` WHERE id = $1::uuid AND `+theLane)
	}
	return strings.Join(queries, "\nUNION ALL ")
}

// replayBacklog is replayDead without dedup keys. Primary key of backlog_dead.
func replayBacklog() string {
	columns := eventrow.Columns()
	return strings.NewReplacer("{events}", eventColumns, "{d.events}", "d."+strings.Join(columns, ", d."), "{m.events}", "m."+strings.Join(columns, ", m.")).
		Replace(`WITH ` + durable + `, clock AS MATERIALIZED (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now),
buried AS MATERIALIZED (
  SELECT d.id, d.lane, d.seq FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) AND d.` + theLane + ` ORDER BY d.seq FOR UPDATE OF d
), moved AS (
  DELETE FROM {dead} d USING buried b WHERE d.id = b.id AND d.lane = b.lane
  RETURNING d.lane, d.seq, {d.events}, d.created_at, d.replay, d.last_error
), put AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, last_error, due_at, attempts, holds)
  SELECT m.lane, m.seq, {m.events}, m.created_at, m.replay + 1, m.last_error, clock.now, 0, coalesce(m.aggregate_id, '') <> ''
  FROM moved m, clock
)
SELECT b.id, clock.now, true, '', '' FROM buried b, clock ORDER BY b.seq`)
}

// discardBacklog deletes dead letters. Primary key of backlog_dead.
const discardBacklog = `WITH ` + durable + `, buried AS MATERIALIZED (
  SELECT d.id, d.lane FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) AND d.` + theLane + ` ORDER BY d.seq FOR UPDATE OF d
), gone AS (
  DELETE FROM {dead} d USING buried b WHERE d.id = b.id AND d.lane = b.lane RETURNING d.id
)
SELECT id FROM gone`

// unblockBacklog ends holds. Primary keys of backlog_dead and backlog_delayed.
const unblockBacklog = `WITH ` + durable + `, buried AS MATERIALIZED (
  SELECT d.id, d.lane FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) AND d.` + theLane + ` AND d.holds ORDER BY d.seq FOR UPDATE OF d
), late AS MATERIALIZED (
  SELECT d.id, d.lane FROM durable, {delayed} d WHERE d.id = ANY($1::uuid[]) AND d.` + theLane + ` AND d.holds ORDER BY d.id FOR UPDATE OF d
), dead AS (
  UPDATE {dead} d SET holds = false FROM buried b WHERE d.id = b.id AND d.lane = b.lane RETURNING d.id
), delayed AS (
  UPDATE {delayed} d SET holds = false FROM late l WHERE d.id = l.id AND d.lane = l.lane RETURNING d.id
)
SELECT id FROM dead UNION ALL SELECT id FROM delayed`

// purgeBacklog deletes dead letters. $1: their age in seconds, $2: the limit.
// backlog_dead_died_idx (lane >> 10, died_at) finds the oldest, the primary key
// deletes them.
const purgeBacklog = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT id FROM {dead} WHERE lane >> 10 = {number} AND died_at < (SELECT cutoff FROM clock) ORDER BY died_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {dead} d WHERE d.id = ANY(ARRAY(SELECT id FROM old)) AND d.` + theLane + ` RETURNING 1
)
SELECT count(*) FROM gone`

// occupiedLanes finds the lanes that have rows, with one step per lane and
// table: primary key of backlog (lane, seq, id), backlog_delayed_due_idx (lane,
// due_at, seq), and backlog_dead_holds_idx (lane) where holds. Each row has the
// timeline, and there is always the one of the lane -1.
const occupiedLanes = `SELECT -1 AS lane` + readTimeline + ` UNION ALL SELECT u.lane` + readTimeline + ` FROM (
SELECT l.lane FROM {lane} l CROSS JOIN LATERAL (SELECT FROM {outbox} o WHERE o.lane = l.lane + {low} LIMIT 1) AS o
UNION SELECT l.lane FROM {lane} l CROSS JOIN LATERAL (SELECT FROM {delayed} d WHERE d.lane = l.lane + {low} LIMIT 1) AS d
UNION SELECT l.lane FROM {lane} l CROSS JOIN LATERAL (SELECT FROM {dead} d WHERE d.lane = l.lane + {low} AND d.holds LIMIT 1) AS d
) AS u`
