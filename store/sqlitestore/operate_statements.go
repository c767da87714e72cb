package sqlitestore

import (
	"strconv"

	"github.com/waybillhq/waybill/store"
)

// place describes the rows of a state in their table.
type place struct {
	table string
	// more is the columns after rowColumns: due time, attempts, replay, holds,
	// last error, end time.
	more string
	// attempts and holds are the expressions for a filter.
	attempts, holds string
	// after is the condition for rows after a seq, ?7. Without an index on seq,
	// SQLite scans the table.
	after string
}

var places = [...]place{
	store.Ready: {"{outbox}", "available_at, 0, 0, 0, NULL, NULL", "0", "0", "seq > ?7"},
	store.Delayed: {
		"{delayed}", "due_at, attempts, replay, holds, last_error, NULL", "attempts", "holds", "seq > ?7",
	},
	store.Dead: {
		"{dead}", "NULL, attempts, replay, holds, last_error, died_at", "attempts", "holds", "lane = 0 AND seq > ?7",
	},
	store.Delivered: {"{history}", "NULL, attempts, replay, 0, NULL, done_at", "attempts", "0", "seq > ?7"},
}

// fits returns the condition of the filter, whose fields are the arguments 1 to
// 6. Texts compare as bytes: no column has a collation.
func (p place) fits() string {
	return `(?1 = '' OR type = ?1) AND (?2 = '' OR ` + shownType + ` = ?2) AND (?3 = '' OR aggregate_id = ?3)
 AND (?4 = '' OR ifnull(tenant_id, '') = ifnull(?4, '')) AND (NOT ?5 OR ` + p.holds + `)
 AND CASE WHEN ?6 IS NULL THEN ` + p.attempts + ` = 0 ELSE NOT ?6 OR ` + p.attempts + ` > 0 END`
}

func (s *statements) browseStatements(one func(string) *statement) {
	find := ""
	for state, p := range places {
		s.count[state] = one(`SELECT count(*) FROM ` + p.table + ` WHERE ` + p.fits())
		// Primary key of outbox; dead_seq_idx (lane, seq).
		whole := `SELECT ` + strconv.Itoa(state) + `, ` + rowColumns + `, ` + p.more + ` FROM ` + p.table
		s.list[state] = one(whole + ` WHERE ` + p.after + ` AND ` + p.fits() + ` ORDER BY seq LIMIT ?8`)
		if find != "" {
			find += "\nUNION ALL "
		}
		find += whole + ` WHERE id = ?1`
	}
	// Unique id of outbox, primary keys of delayed and dead, history_id_idx.
	s.find = one(find)
	// SQLite counts by scanning the table or its smallest index. The oldest row
	// is the first by the primary key.
	s.stats = one(`SELECT (SELECT count(*) FROM {outbox}), (SELECT created_at FROM {outbox} ORDER BY seq LIMIT 1),
 d.rows - d.failed, d.failed, d.attempts, (SELECT count(*) FROM {dead}), d.holding + (SELECT count(*) FROM {dead} WHERE lane = 0 AND holds)
FROM (SELECT count(*) AS rows, count(*) FILTER (WHERE attempts > 0) AS failed, count(*) FILTER (WHERE holds) AS holding,
 ifnull(max(attempts), 0) AS attempts FROM {delayed}) AS d`)
}

func (s *statements) deadLetterStatements(one func(string) *statement, each func(text, item string) []*statement) {
	// Primary key of dead or delayed, up to raiseEpoch.
	s.deadKeys = each(`SELECT id, seq, ifnull(tenant_id, ''), ifnull(dedup_key, '') FROM {dead} WHERE id IN (LIST)`, "?")
	// A replayed event that is ordered holds its aggregate, so that it stays in
	// front of later events.
	s.replay = each(`INSERT INTO {delayed} (`+rowColumns+`, due_at, attempts, replay, holds, last_error)
SELECT `+rowColumns+`, ?1, 0, replay + 1, ifnull(aggregate_id, '') <> '', last_error FROM {dead} WHERE id IN (LIST)`, "?")
	s.discard = each(`DELETE FROM {dead} WHERE id IN (LIST) RETURNING id, created_at`, "?")
	s.unblockDead = each(`UPDATE {dead} SET holds = 0 WHERE id IN (LIST) AND holds RETURNING id, created_at`, "?")
	s.unblockDelayed = each(`UPDATE {delayed} SET holds = 0 WHERE id IN (LIST) AND holds RETURNING id, created_at`, "?")

	s.anyLive = one(`SELECT relay FROM {node} WHERE expires_at > ? LIMIT 1`)
	s.raiseEpoch = one(`UPDATE {lane} SET epoch = epoch + 1, dirty = dirty OR owner IS NOT NULL, owner = NULL, token = NULL`)
	s.setHistoryFrom = one(`INSERT INTO {setting} (name, value) VALUES ('history_from', ?1)
ON CONFLICT (name) DO UPDATE SET value = ?1`)
	// history_done_idx, dead_died_idx.
	s.purgeHistory = one(`DELETE FROM {history} WHERE rowid IN (SELECT rowid FROM {history} WHERE done_at < ? ORDER BY done_at LIMIT ?)`)
	s.purgeDead = one(`DELETE FROM {dead} WHERE rowid IN (SELECT rowid FROM {dead} WHERE died_at < ? ORDER BY died_at LIMIT ?)`)
	// Primary key of outbox, whose order is nearly the order of created_at. The
	// age of an event that was delayed counts from its due time.
	s.purgeReady = one(`DELETE FROM {outbox} WHERE seq IN (SELECT seq FROM {outbox} WHERE created_at < ?1 AND ifnull(available_at, 0) < ?1
ORDER BY seq LIMIT ?2) RETURNING id, tenant_id, dedup_key`)
	// delayed_due_idx (lane, due_at, seq). An event whose id is already among
	// the ready events stays delayed.
	const due = `SELECT id FROM {delayed} AS d WHERE lane = 0 AND due_at <= ?1 AND NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id)
ORDER BY due_at, seq LIMIT ?2`
	s.makeReady = one(`INSERT INTO {outbox} (` + rowColumns + `, available_at)
SELECT ` + rowColumns + `, due_at FROM {delayed} WHERE id IN (` + due + `) ORDER BY due_at, seq RETURNING id`)
	// Primary key of delayed. Exactly the events that makeReady has moved are
	// in both tables.
	s.dropMoved = each(`DELETE FROM {delayed} WHERE id IN (LIST)`, "?")
	// Keys without a pending event, whose row was deleted by hand. An event and
	// its key commit together.
	s.freeOrphans = one(`DELETE FROM {dedup} WHERE NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = {dedup}.id)
AND NOT EXISTS (SELECT 1 FROM {delayed} AS l WHERE l.id = {dedup}.id)`)
}
