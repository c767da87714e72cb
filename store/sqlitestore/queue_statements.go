package sqlitestore

import (
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/store"
)

// queueStatements are the statements about the rows of a queue: of the outbox,
// or of the backlog of a destination. Their texts name the tables of the
// outbox. {row_lane} is the lane of the rows; {and_lane} and {where_lane} are
// conditions that select them, and empty for the outbox, which has one lane.
// See [Config.replacer] and [Config.backlogReplacer].
type queueStatements struct {
	// Reading.
	fetch, sweep          *statement
	due, nextDue          *statement
	holds, follow, urgent *statement
	plain                 []*statement
	load, present         []*statement
	// Settling.
	dropReady, dropDelayed   []*statement
	retryReady, retryDelayed *statement
	buryReady, buryDelayed   *statement
	// Inspection, by state, and operations on dead letters.
	count, list                 [4]*statement
	deadBy                      [narrowed]listing
	recent, recentFloor         *statement // nil for a backlog
	stats, find                 *statement
	deadKeys, replay, discard   []*statement
	unblockDead, unblockDelayed []*statement
	causeless, setCause         *statement
	countCauses, listCause      *statement
}

// listing are the statements that list and count.
type listing struct{ list, count *statement }

// queueShape holds the parts in which the statements of the outbox and of a
// backlog differ, except for names and lanes.
type queueShape struct {
	// readyState is the columns of a ready row that a read returns after
	// rowColumns. listedState is the same columns in the order of a delayed
	// row, and listedFinal the last of them for the rows of other states.
	readyState, listedState, listedFinal string
	// readyAttempts is the attempts of a ready row, and maxAttempts the highest
	// attempts of all pending rows.
	readyAttempts, maxAttempts string
	// readyError is the last error of a ready row.
	readyError string
	// key is the tenant and the dedup key that a row frees when it leaves, and
	// replayKey those that it takes when it is replayed.
	key, replayKey string
	// outbox means that the queue has delivered events, and that its ready rows
	// were never replayed.
	outbox bool
}

var (
	shapeOfOutbox = queueShape{
		readyState: "available_at", listedState: "available_at, 0, 0, 0, NULL",
		readyAttempts: "0", maxAttempts: "d.attempts", readyError: "NULL",
		key: "tenant_id, dedup_key", replayKey: "ifnull(tenant_id, ''), ifnull(dedup_key, '')",
		outbox: true,
	}
	// A ready row of a backlog has attempts, and can have been replayed. It has
	// no dedup key to free or to take. backlog_tried_idx (lane, attempts) of
	// rows with attempts.
	shapeOfBacklog = queueShape{
		readyState:  "available_at, attempts, replay, 0, last_error, final",
		listedState: "available_at, attempts, replay, 0, last_error, final", listedFinal: ", 0",
		readyAttempts: "attempts", readyError: "last_error",
		maxAttempts: "max(d.attempts, ifnull((SELECT max(attempts) FROM {outbox} WHERE lane = {row_lane} AND attempts > 0), 0))",
		key:         "NULL, NULL", replayKey: "'', ''",
	}
)

func (s *queueStatements) fill(one func(string) *statement, each func(text, item string) []*statement, shape queueShape) {
	s.readStatements(one, each, shape)
	s.moveStatements(one, each, shape)
	s.browseStatements(one, shape)
	s.causeStatements(one, shape)
	s.deadLetterStatements(each, shape)
}

// In the comments on indexes, the unique id of outbox stands for the unique
// (id, lane) of backlog, the primary key of outbox for the primary key (lane,
// seq) of backlog, and the primary keys of delayed and dead for those of
// backlog_delayed and backlog_dead, (id, lane). The other indexes of the
// backlogs have the names of the outbox's indexes, behind "backlog".

func (s *queueStatements) readStatements(one func(string) *statement, each func(text, item string) []*statement, shape queueShape) {
	row := rowColumns + ", " + shape.readyState
	// Primary key of outbox, for all four. There is one lane, so seq alone is
	// the order.
	s.fetch = one(`SELECT ` + row + ` FROM {outbox} WHERE seq > ? AND seq <= ?{and_lane} ORDER BY seq LIMIT ?`)
	s.sweep = one(`SELECT seq, id, ` + aggregateColumns + ` FROM {outbox} WHERE seq > ? AND seq <= ?{and_lane} ORDER BY seq LIMIT ?`)
	s.load = each(`SELECT `+row+` FROM {outbox} WHERE seq IN (LIST){and_lane} ORDER BY seq`, "?")
	s.follow = one(`SELECT ` + row + ` FROM {outbox} WHERE seq > ? AND seq <= ?
 AND aggregate_id = ? AND ` + shownType + ` = ? AND ifnull(tenant_id, '') = ?{and_lane} ORDER BY seq LIMIT ?`)
	// outbox_priority_idx (seq) of events with a priority, or
	// backlog_priority_idx (lane, seq). Without INDEXED BY, SQLite may use the
	// primary key.
	s.urgent = one(`SELECT seq, id, ` + aggregateColumns + ` FROM {outbox} INDEXED BY {priority_idx}
WHERE seq > ? AND seq <= ? AND priority > 0{and_lane} ORDER BY seq LIMIT ?`)
	// Primary key of outbox: the statement reads the range once.
	s.plain = each(`SELECT `+aggregateColumns+`, min(seq) FROM {outbox}
WHERE seq > ?1 AND seq <= ?2 AND priority <= 0 AND aggregate_id IN (LIST){and_lane} GROUP BY 1, 2, 3`, "?")
	// delayed_due_idx (lane, due_at, seq), for both.
	s.due = one(`SELECT ` + rowColumns + `, due_at, attempts, replay, holds, last_error FROM {delayed}
WHERE lane = {row_lane} AND due_at <= ? ORDER BY due_at, seq LIMIT ?`)
	s.nextDue = one(`SELECT min(due_at) FROM {delayed} WHERE lane = {row_lane} AND due_at > ?`)
	// delayed_holds_idx and dead_holds_idx (lane) of events that hold.
	s.holds = one(`SELECT seq, id, ` + aggregateColumns + `, 0 FROM {delayed} WHERE lane = {row_lane} AND holds
UNION ALL SELECT seq, id, ` + aggregateColumns + `, 1 FROM {dead} WHERE lane = {row_lane} AND holds`)
	// Unique id of outbox, primary key of delayed.
	s.present = each(`WITH asked(id) AS (VALUES LIST)
SELECT id FROM asked WHERE EXISTS (SELECT 1 FROM {outbox} o WHERE o.id = asked.id{and_lane})
 OR EXISTS (SELECT 1 FROM {delayed} d WHERE d.id = asked.id{and_lane})`, "(?)")
}

// moveStatements make the statements that move or delete rows. All of them find
// rows by the unique id of outbox or the primary key of delayed.
func (s *queueStatements) moveStatements(one func(string) *statement, each func(text, item string) []*statement, shape queueShape) {
	s.dropReady = each(`DELETE FROM {outbox} WHERE id IN (LIST){and_lane} RETURNING id, `+shape.key, "?")
	s.dropDelayed = each(`DELETE FROM {delayed} WHERE id IN (LIST){and_lane} RETURNING id, `+shape.key, "?")

	s.retryDelayed = one(`UPDATE {delayed} SET due_at = ?, attempts = ?, holds = ?, last_error = ? WHERE id = ? AND replay = ?{and_lane}`)
	// OR REPLACE: if two events have the same id, the second must not stop the
	// lane by failing here forever.
	s.buryDelayed = one(`INSERT OR REPLACE INTO {dead} (` + rowColumns + `, replay, attempts, holds, last_error, died_at)
SELECT ` + rowColumns + `, replay, ?, ?, ?, ? FROM {delayed} WHERE id = ? AND replay = ?{and_lane}`)
	if !shape.outbox {
		s.moveReplayed(one)
		return
	}
	s.retryReady = one(`INSERT INTO {delayed} (` + rowColumns + `, due_at, attempts, holds, last_error)
SELECT ` + rowColumns + `, ?, ?, ?, ? FROM {outbox} WHERE id = ?`)
	s.buryReady = one(`INSERT OR REPLACE INTO {dead} (` + rowColumns + `, replay, attempts, holds, last_error, died_at)
SELECT ` + rowColumns + `, 0, ?, ?, ?, ? FROM {outbox} WHERE id = ?`)
}

// moveReplayed makes the statements that move a ready row of a backlog, which
// may have been replayed. OR REPLACE: an event that was written twice with one
// id can be ready and delayed at the same time.
func (s *queueStatements) moveReplayed(one func(string) *statement) {
	s.retryReady = one(`INSERT OR REPLACE INTO {delayed} (` + rowColumns + `, replay, due_at, attempts, holds, last_error)
SELECT ` + rowColumns + `, replay, ?, ?, ?, ? FROM {outbox} WHERE id = ? AND replay = ?{and_lane}`)
	s.buryReady = one(`INSERT OR REPLACE INTO {dead} (` + rowColumns + `, replay, attempts, holds, last_error, died_at)
SELECT ` + rowColumns + `, replay, ?, ?, ?, ? FROM {outbox} WHERE id = ? AND replay = ?{and_lane}`)
}

// place describes the rows of a state in their table.
type place struct {
	table string
	// more is the columns after rowColumns: due time, attempts, replay, holds,
	// last error, for a backlog whether it is final, end time.
	more string
	// attempts and holds are the expressions for a filter.
	attempts, holds string
	// at, failure and cause are the expressions for a filter: the time, the
	// last error, and the cause.
	at, failure, cause string
	// after is the condition for rows after a seq, ?12. Without an index on
	// seq, SQLite scans the table.
	after string
}

// places returns the places of the rows of a queue, by state.
func places(shape queueShape) []place {
	all := []place{
		store.Ready: {"{outbox}", shape.listedState + ", NULL", shape.readyAttempts, "0", "created_at", shape.readyError, "NULL", "seq > ?12{and_lane}"},
		store.Delayed: {
			"{delayed}", "due_at, attempts, replay, holds, last_error" + shape.listedFinal + ", NULL", "attempts", "holds", "created_at", "last_error", "NULL",
			"seq > ?12{and_lane}",
		},
		store.Dead: {
			"{dead}", "NULL, attempts, replay, holds, last_error" + shape.listedFinal + ", died_at", "attempts", "holds", "died_at", "last_error", "cause",
			"lane = {row_lane} AND seq > ?12",
		},
	}
	if shape.outbox {
		all = append(all, place{"{history}", "NULL, attempts, replay, 0, NULL, done_at", "attempts", "0", "done_at", "NULL", "NULL", "seq > ?12"})
	}
	return all
}

// fits returns the condition of the filter, whose fields are the arguments 1 to
// 11. Texts compare as bytes: no column has a collation.
func (p place) fits() string {
	return `(?1 = '' OR type = ?1) AND (?2 = '' OR ` + shownType + ` = ?2) AND (?3 = '' OR aggregate_id = ?3)
 AND (?4 = '' OR ifnull(tenant_id, '') = ifnull(?4, '')) AND (NOT ?5 OR ` + p.holds + `)
 AND CASE WHEN ?6 IS NULL THEN ` + p.attempts + ` = 0 ELSE NOT ?6 OR ` + p.attempts + ` > 0 END
 AND (?7 IS NULL OR ` + p.at + ` >= ?7) AND (?8 IS NULL OR ` + p.at + ` < ?8) AND (?9 = '' OR instr(` + p.failure + `, ?9) > 0)
 AND (?10 = '' OR correlation_id = ?10) AND (?11 = '' OR ` + p.cause + ` = ?11)`
}

// The fields of a filter that dead letters have an index for: dead_type_idx
// (lane, type, seq), dead_aggregate_idx (lane, aggregate_id, seq),
// dead_cause_idx (lane, cause, seq), and dead_died_idx (died_at), which begins
// with the lane in a backlog.
const (
	byType = iota
	byAggregate
	byCause
	bySince
	narrowed
)

// narrows are the conditions of fits that select by the fields, and those that
// use the index.
var narrows = [narrowed][2]string{
	byType:      {`(?1 = '' OR type = ?1)`, `type = ?1`},
	byAggregate: {`(?3 = '' OR aggregate_id = ?3)`, `aggregate_id = ?3`},
	byCause:     {`(?11 = '' OR cause = ?11)`, `cause = ?11`},
	bySince:     {`(?7 IS NULL OR died_at >= ?7)`, `died_at >= ?7`},
}

// fitsBy is fits for a filter with a field that has an index.
func (p place) fitsBy(field int) string {
	return strings.Replace(p.fits(), narrows[field][0], narrows[field][1], 1)
}

// narrow returns the statements for a filter that selects dead letters by a
// field with an index, or nil.
func (s *queueStatements) narrow(state store.State, f store.Filter) *listing {
	switch {
	case state != store.Dead:
	case f.AggregateID != "":
		return &s.deadBy[byAggregate]
	case f.Type != "":
		return &s.deadBy[byType]
	case f.Cause != "":
		return &s.deadBy[byCause]
	case !f.Since.IsZero():
		return &s.deadBy[bySince]
	}
	return nil
}

func (s *queueStatements) browseStatements(one func(string) *statement, shape queueShape) {
	find := ""
	for state, p := range places(shape) {
		s.count[state] = one(`SELECT count(*) FROM ` + p.table + ` WHERE ` + p.fits() + `{and_lane}`)
		// Primary key of outbox; dead_seq_idx (lane, seq).
		whole := `SELECT ` + strconv.Itoa(state) + `, ` + rowColumns + `, ` + p.more + ` FROM ` + p.table
		s.list[state] = one(whole + ` WHERE ` + p.after + ` AND ` + p.fits() + ` ORDER BY seq LIMIT ?13`)
		if store.State(state) == store.Dead {
			for by := range s.deadBy {
				own := ` WHERE lane = {row_lane} AND ` + p.fitsBy(by)
				s.deadBy[by].count = one(`SELECT count(*) FROM ` + p.table + own)
				s.deadBy[by].list = one(whole + own + ` AND seq > ?12 ORDER BY seq LIMIT ?13`)
			}
		}
		if store.State(state) == store.Delivered { // history_id_idx
			s.recent = one(whole + ` WHERE id < ?12 AND id >= ?14 AND ` + p.fits() + ` ORDER BY id DESC LIMIT ?13`)
			s.recentFloor = one(`SELECT id FROM ` + p.table + ` WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2`)
		}
		if find != "" {
			find += "\nUNION ALL "
		}
		find += whole + ` WHERE id = ?1{and_lane}`
	}
	// Unique id of outbox, primary keys of delayed and dead, history_id_idx.
	s.find = one(find)
	// SQLite counts by scanning the table or its smallest index. The oldest row
	// is the first by the primary key.
	s.stats = one(`SELECT (SELECT count(*) FROM {outbox}{where_lane}), (SELECT created_at FROM {outbox}{where_lane} ORDER BY seq LIMIT 1),
 d.rows - d.failed, d.failed, ` + shape.maxAttempts + `, (SELECT count(*) FROM {dead}{where_lane}), d.holding + (SELECT count(*) FROM {dead} WHERE lane = {row_lane} AND holds)
FROM (SELECT count(*) AS rows, count(*) FILTER (WHERE attempts > 0) AS failed, count(*) FILTER (WHERE holds) AS holding,
 ifnull(max(attempts), 0) AS attempts FROM {delayed}{where_lane}) AS d`)
}

func (s *queueStatements) deadLetterStatements(each func(text, item string) []*statement, shape queueShape) {
	// Primary key of dead or delayed.
	s.deadKeys = each(`SELECT id, seq, `+shape.replayKey+` FROM {dead} WHERE id IN (LIST){and_lane}`, "?")
	// A replayed event that is ordered holds its aggregate, so that it stays in
	// front of later events.
	s.replay = each(`INSERT INTO {delayed} (`+rowColumns+`, due_at, attempts, replay, holds, last_error)
SELECT `+rowColumns+`, ?1, 0, replay + 1, ifnull(aggregate_id, '') <> '', last_error FROM {dead} WHERE id IN (LIST){and_lane}`, "?")
	s.discard = each(`DELETE FROM {dead} WHERE id IN (LIST){and_lane} RETURNING id, created_at`, "?")
	s.unblockDead = each(`UPDATE {dead} SET holds = 0 WHERE id IN (LIST) AND holds{and_lane} RETURNING id, created_at`, "?")
	s.unblockDelayed = each(`UPDATE {delayed} SET holds = 0 WHERE id IN (LIST) AND holds{and_lane} RETURNING id, created_at`, "?")
}
