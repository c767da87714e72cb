package pgstore

import (
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/sqlstore"
)

// settleKind selects the parts of a settlement's statement. Missing parts cost
// nothing. The history is a part of done and late. Diversions copy done events,
// so that they need done or late.
type settleKind struct{ done, late, history, retry, dead, divert bool }

// settleStatements are the statements of all kinds. Each is one autocommit
// statement: a client that stops between a lock and its commit would block the
// takeover for as long as its connection lives.
//
// The fence is a lock, not a read. With EXISTS(epoch) instead, a statement
// whose snapshot is older than a takeover would still move rows after the
// takeover. FOR SHARE makes the takeover's FOR UPDATE wait. If the settlement
// waits for a takeover instead, the server checks the row again, and its epoch
// no longer matches. Rows are found by id: unique id of outbox, primary key of
// delayed.
func settleStatements(r func(string) string) map[settleKind]string {
	out := make(map[settleKind]string)
	for _, k := range settleKinds() {
		out[k] = r(k.statement(settleBuilder{}))
	}
	return out
}

// backlogSettleStatements are the statements for a backlog, which diverts
// nothing.
func backlogSettleStatements(r func(string) string) map[settleKind]string {
	out := make(map[settleKind]string)
	for _, k := range settleKinds() {
		if !k.divert {
			out[k] = r(k.statement(settleBuilder{backlog: true}))
		}
	}
	return out
}

// settleKinds returns all kinds.
func settleKinds() []settleKind {
	kinds := []settleKind{{}, {done: true}, {late: true}, {done: true, late: true}}
	double := func(change func(*settleKind)) {
		for _, k := range kinds {
			change(&k)
			kinds = append(kinds, k)
		}
	}
	double(func(k *settleKind) { k.retry = true })
	double(func(k *settleKind) { k.dead = true })
	for _, k := range kinds {
		if k.done || k.late {
			k.history = true
			kinds = append(kinds, k)
		}
	}
	for _, k := range kinds {
		if k.done || k.late {
			k.divert = true
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// statement returns the statement of a kind. The order of the parts is the
// order of the arguments in core.settle.
func (k settleKind) statement(b settleBuilder) string {
	switch {
	case b.backlog:
		b.columns = "id, created_at"
	case k.history || k.divert:
		b.columns = "lane, seq, " + eventColumns + ", created_at"
	default:
		b.columns = "lane, id, tenant_id, dedup_key"
	}
	b.fence()
	if k.done {
		b.done()
	}
	if k.late {
		b.late()
	}
	if (k.done || k.late) && !b.backlog {
		b.keys()
	}
	if k.history && b.backlog {
		b.redated()
	} else if k.history {
		b.history()
	}
	if k.retry {
		b.retry()
	}
	if k.dead {
		b.dead()
	}
	if k.divert {
		b.divert()
	}
	b.answer()
	return b.text.String()
}

// settleBuilder appends the parts of a statement and numbers its parameters in
// the order in which the parts ask for them.
type settleBuilder struct {
	text    strings.Builder
	params  int
	backlog bool     // the tables are those of the backlogs
	columns string   // the columns of done events that the other parts need
	gone    []string // the parts that return done events
	moved   []string // the parts that return moved events
}

// add appends pieces of text.
func (b *settleBuilder) add(pieces ...string) {
	for _, piece := range pieces {
		b.text.WriteString(piece)
	}
}

// param returns the next parameter with its type, such as $5::uuid[].
func (b *settleBuilder) param(typ string) string {
	b.params++
	return "$" + strconv.Itoa(b.params) + "::" + typ
}

// paramList returns the next parameters, separated by commas.
func (b *settleBuilder) paramList(types ...string) string {
	list := make([]string, len(types))
	for i, typ := range types {
		list[i] = b.param(typ)
	}
	return strings.Join(list, ", ")
}

// laneHeld is the condition on the lanes of the fence, as an array: comparing
// with a few numbers is cheaper per row than a join. The lanes are compared as
// integers, for which there is no index, so that rows are found by id only.
const laneHeld = `lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))`

// fence has four parameters: whether the commit may be lost, and the lanes,
// epochs and tokens of the leases.
func (b *settleBuilder) fence() {
	lane := "l.lane"
	if b.backlog { // the lane in the tables of the backlogs
		lane = "l.lane + {low} AS lane"
	}
	b.add(`WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN `, b.param("boolean"), ` THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT `, lane, ` FROM mode, {lane} l JOIN unnest(`, b.paramList("smallint[]", "bigint[]", "uuid[]"), `) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
)`)
}

// done has one parameter: the ids of done events that are ready.
func (b *settleBuilder) done() {
	b.add(`, done AS (
  DELETE FROM {outbox} WHERE id = ANY(`, b.param("uuid[]"), `) AND `, laneHeld, `
  RETURNING `, b.columns, b.either(", 0 AS attempts, 0 AS replay", ""), `
)`)
	b.gone, b.moved = append(b.gone, "done"), append(b.moved, "done")
}

// late has one parameter: the ids of done events that were delayed.
func (b *settleBuilder) late() {
	b.add(`, done_late AS (
  DELETE FROM {delayed} WHERE id = ANY(`, b.param("uuid[]"), `) AND `, laneHeld, `
  RETURNING `, b.columns, b.either(", attempts, replay", ""), `
)`)
	b.gone, b.moved = append(b.gone, "done_late"), append(b.moved, "done_late")
}

// allGone returns a query of all done events.
func (b *settleBuilder) allGone() string {
	return "SELECT * FROM " + strings.Join(b.gone, " UNION ALL SELECT * FROM ")
}

// keys removes the dedup keys of done events.
func (b *settleBuilder) keys() {
	b.add(`, done_key AS (
  DELETE FROM {dedup} d USING (`, b.allGone(), `) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
)`)
}

// history copies done events to the history.
func (b *settleBuilder) history() {
	b.add(`, kept AS (
  INSERT INTO {history} (`, b.columns, `, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM (`, b.allGone(), `) AS g
)`)
}

// redated sets the delivery time of done events in the history. An event cannot
// have been delivered before it was written, so that older partitions are
// skipped; the day allows for a clock that was set back. A row that is locked
// is skipped, because another destination's settlement sets the same time, or
// the purge deletes the row: two settlements cannot deadlock. history_id_idx.
func (b *settleBuilder) redated() {
	b.add(`, gone AS (
  `, b.allGone(), `
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
)`)
}

// either returns the text for the outbox or the text for a backlog.
func (b *settleBuilder) either(outbox, backlog string) string {
	if b.backlog {
		return backlog
	}
	return outbox
}

// retry has six parameters: ids, attempts, delays in microseconds, holds,
// errors and replays of retried events. A row that was replayed since it was
// read belongs to another delivery. A row of the outbox was never replayed.
func (b *settleBuilder) retry() {
	ids := b.param("uuid[]")
	b.add(`, retry AS MATERIALIZED (
  SELECT * FROM unnest(`, ids, `, `, b.paramList("integer[]", "bigint[]", "boolean[]", "text[]", "integer[]"), `)
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY(`, ids, `) AND `, b.either("", "(id, replay) IN (SELECT id, replay FROM retry) AND "), laneHeld, `
  RETURNING lane, seq, `, eventColumns, `, created_at`, b.either("", ", replay"), `
), late AS (
  INSERT INTO {delayed} (lane, seq, `, eventColumns, `, created_at`, b.either("", ", replay"), `, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY(`, ids, `) AND d.id = r.id AND d.replay = r.replay AND d.`, laneHeld, ` RETURNING d.lane, d.id
)`)
	b.moved = append(b.moved, "late", "again")
}

// dead has five parameters: ids, attempts, holds, errors and replays of dead
// events.
func (b *settleBuilder) dead() {
	ids := b.param("uuid[]")
	b.add(`, verdict AS MATERIALIZED (
  SELECT * FROM unnest(`, ids, `, `, b.paramList("integer[]", "boolean[]", "text[]", "integer[]"), `) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY(`, ids, `) AND `, b.either("", "(id, replay) IN (SELECT id, replay FROM verdict) AND "), laneHeld, `
  RETURNING lane, seq, `, eventColumns, `, created_at, `, b.either("0 AS replay", "replay"), `
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY(`, ids, `) AND (id, replay) IN (SELECT id, replay FROM verdict) AND `, laneHeld, `
  RETURNING lane, seq, `, eventColumns, `, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, `, eventColumns, `, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)`)
	if !b.backlog {
		b.add(`, dead_key AS (
  DELETE FROM {dedup} d USING buried b
  WHERE b.dedup_key IS NOT NULL AND d.tenant_id = coalesce(b.tenant_id, '') AND d.dedup_key = b.dedup_key AND d.id = b.id
)`)
	}
	b.moved = append(b.moved, "buried")
}

// divert has six parameters: ids, numbers of destinations, attempts, delays in
// microseconds, finals and errors of diversions. It copies done events to the
// backlogs of registered destinations. An event whose id is already ready there
// was delivered and then written again, and waits once. The destination cannot
// be removed before the commit: its removal locks the lanes that have an owner,
// and their fences are void afterwards.
func (b *settleBuilder) divert() {
	b.add(`, diverted AS (
  INSERT INTO {backlog} (lane, seq, `, eventColumns, `, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * `, strconv.Itoa(sqlstore.MaxLanes), `, seq, `, eventColumns, `, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (`, b.allGone(), `) AS g
  JOIN unnest(`, b.paramList("uuid[]", "integer[]", "integer[]", "bigint[]", "boolean[]", "text[]"), `)
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)`)
}

// answer appends the final SELECT, which has one row: the lanes that are held,
// the number of moved events, and, only if not all were moved, their ids. The
// server does not return what the client already knows: returning five hundred
// ids took as long as deleting their rows. If the statement moves events, the
// answer has one parameter: their number.
func (b *settleBuilder) answer() {
	b.add("\nSELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), '')")
	if len(b.moved) == 0 {
		b.add(", 0, ''")
		return
	}
	all := b.param("bigint")
	b.add(`, m.n, CASE WHEN m.n < `, all, ` THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < `, all, ` THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM `, strings.Join(b.moved, " UNION ALL SELECT id FROM "), `
) AS all_of_them) AS m`)
}
