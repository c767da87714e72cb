package sqlitestore

import "strings"

// backlogStatements are the statements about the backlog of one destination.
// Their texts name the tables of the outbox; see [Config.backlogReplacer].
type backlogStatements struct {
	all []*statement
	queueStatements
	occupied, purgeDead *statement
	registered          *statement
	// The refill from the history.
	pageOfHistory, countHistory *statement
	refill                      []*statement
}

// inHistory is the condition of a query of the history. Its arguments 1 and 2
// are the times of the delivery, 3 to 5 are lists in JSON of types, aggregate
// types and tenants, and 6 is an aggregate id. NULL matches everything.
const inHistory = `done_at >= ?1 AND done_at < ?2
 AND (?3 IS NULL OR type IN (SELECT value FROM json_each(?3))) AND (?4 IS NULL OR ` + shownType + ` IN (SELECT value FROM json_each(?4)))
 AND (?5 IS NULL OR ifnull(tenant_id, '') IN (SELECT value FROM json_each(?5))) AND (?6 IS NULL OR aggregate_id = ?6)`

func newBacklogStatements(names *strings.Replacer) *backlogStatements {
	s := &backlogStatements{}
	one, each := makers(names, &s.all)
	s.fill(one, each, shapeOfBacklog)
	s.registered = one(`SELECT EXISTS (SELECT 1 FROM {destination} WHERE number = ?)`)
	// Primary key of backlog, backlog_delayed_due_idx, backlog_dead_holds_idx.
	s.occupied = one(`SELECT EXISTS (SELECT 1 FROM {outbox} WHERE lane = {row_lane})
 OR EXISTS (SELECT 1 FROM {delayed} WHERE lane = {row_lane}) OR EXISTS (SELECT 1 FROM {dead} WHERE lane = {row_lane} AND holds)`)
	// backlog_dead_died_idx (lane, died_at).
	s.purgeDead = one(`DELETE FROM {dead} WHERE rowid IN (SELECT rowid FROM {dead} WHERE died_at < ?{and_lane} ORDER BY died_at LIMIT ?)`)

	// history_done_idx (done_at): SQLite sorts only the ids of one time, which
	// are those of one settlement. Arguments 7 and 8 are the cursor.
	s.pageOfHistory = one(`SELECT rowid, done_at, id FROM {history} INDEXED BY "{prefix}history_done_idx"
WHERE ` + inHistory + ` AND (done_at > ?7 OR id > ?8) ORDER BY done_at, id LIMIT ?9`)
	s.countHistory = one(`SELECT count(*) FROM {history} WHERE ` + inHistory)
	// Rowid of history; primary keys of backlog_delayed and backlog_dead, and
	// the unique id of backlog.
	s.refill = each(`INSERT INTO {outbox} (`+rowColumns+`, attempts, replay, final)
SELECT lane + {row_lane}, seq, `+eventColumns+`, created_at, 0, replay + 1, 0 FROM {history} AS h WHERE rowid IN (LIST)
 AND NOT EXISTS (SELECT 1 FROM {delayed} AS d WHERE d.id = h.id{and_lane}) AND NOT EXISTS (SELECT 1 FROM {dead} AS d WHERE d.id = h.id{and_lane})
ON CONFLICT (id, lane) DO NOTHING`, "?")
	return s
}
