package sqlitestore

import "strings"

// inboxStatements are the statements of the inbox.
type inboxStatements struct {
	// In the transaction that contains the effects; accept has one statement
	// for each of sizes.
	accept           []*statement
	succeed, handled *statement
	// Outside that transaction.
	claim, markDead, failNew, failHeld, giveBack *statement
	// Queries and maintenance.
	findRecord, dueRecords    *statement
	openRecords, allRecords   *statement
	lastApplied               *statement
	openStats, groups         *statement
	redriveDead, purgeRecords *statement
	redriveKeys               []*statement
}

const (
	// intakeColumns are the columns of a received event, inboxColumns are all
	// columns.
	intakeColumns = `consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash`
	inboxColumns  = intakeColumns + `, status, owner, fence, attempts, lease_until, next_retry_at, processed_at, received_at, last_error, event`
	// takenAt is the time from which an open record may be claimed.
	// inbox_open_idx is an index on it.
	takenAt = `ifnull(next_retry_at, lease_until)`
	// heldRecord is the fence of an attempt: its arguments are ?1 to ?4.
	heldRecord = `consumer_group = ?1 AND dedup_id = ?2 AND status = 0 AND owner = ?3 AND fence = ?4`
)

func (s *statements) recordStatements(one func(string) *statement, each func(text, item string) []*statement) {
	// Primary key of inbox, up to findRecord. The statements do not use OR
	// IGNORE, which would hide every other error too.
	s.accept = each(`INSERT INTO {inbox} (processed_at, received_at, owner, status, fence, attempts, `+intakeColumns+`) VALUES LIST
ON CONFLICT (consumer_group, dedup_id) DO NOTHING RETURNING consumer_group, dedup_id`, `(?1, ?1, ?2, 1, 1, 1`+strings.Repeat(`, ?`, 6)+`)`)
	s.succeed = one(`UPDATE {inbox} SET status = 1, processed_at = ?5, lease_until = NULL WHERE ` + heldRecord)
	s.handled = one(`SELECT EXISTS (SELECT 1 FROM {inbox} WHERE consumer_group = ? AND dedup_id = ? AND owner = ? AND fence = ? AND status = 1)`)

	s.claim = one(`INSERT INTO {inbox} AS i (` + intakeColumns + `, status, owner, fence, attempts, lease_until, received_at, event)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 1, 1, ?8, ?9, ?10)
ON CONFLICT (consumer_group, dedup_id) DO UPDATE SET status = 0, owner = ?7, fence = i.fence + 1, attempts = i.attempts + 1,
 lease_until = ?8, next_retry_at = NULL, event = ifnull(?10, i.event)
WHERE i.event_type = ?5 AND i.payload_hash = ?6 AND i.attempts < ?11 AND i.status IN (0, 2) AND ifnull(i.next_retry_at, i.lease_until) <= ?9
RETURNING ` + inboxColumns)
	s.markDead = one(`UPDATE {inbox} SET status = 3, processed_at = ?3, lease_until = NULL, next_retry_at = NULL, last_error = ?4
WHERE consumer_group = ?1 AND dedup_id = ?2`)
	s.failNew = one(`INSERT INTO {inbox} (` + intakeColumns + `, status, fence, attempts, next_retry_at, processed_at, received_at, last_error, event)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?, ?) ON CONFLICT (consumer_group, dedup_id) DO NOTHING`)
	s.failHeld = one(`UPDATE {inbox} SET status = ?5, owner = NULL, lease_until = NULL, next_retry_at = ?6, processed_at = ?7, last_error = ?8,
 event = ifnull(?9, event) WHERE ` + heldRecord)
	s.giveBack = one(`UPDATE {inbox} SET status = 2, owner = NULL, lease_until = NULL, next_retry_at = ?5, attempts = attempts - 1
WHERE ` + heldRecord)
	s.findRecord = one(`SELECT ` + inboxColumns + ` FROM {inbox} WHERE consumer_group = ? AND dedup_id = ?`)

	// inbox_open_idx, once for each state, and merged. SQLite uses a partial
	// index only if the statement contains its condition.
	due := func(state string) string {
		return `SELECT ` + inboxColumns + `, ` + takenAt + ` AS taken_at FROM {inbox}
WHERE consumer_group = ?1 AND status <> 1 AND status = ` + state + ` AND ` + takenAt + ` <= ?2 AND event IS NOT NULL`
	}
	s.dueRecords = one(due("0") + "\nUNION ALL " + due("2") + ` ORDER BY taken_at, dedup_id LIMIT ?3`)
	// inbox_open_idx; the result is sorted. Without the condition on status
	// SQLite uses the primary key, and no sort is needed.
	list := func(where string) *statement {
		return one(`SELECT ` + inboxColumns + ` FROM {inbox} WHERE ` + where + `(consumer_group, dedup_id) > (?1, ?2)
 AND (?3 = '' OR consumer_group = ?3) AND ?4 >> status & 1 AND attempts >= ?5 ORDER BY consumer_group, dedup_id LIMIT ?6`)
	}
	s.openRecords, s.allRecords = list(`status <> 1 AND `), list(``)
	// inbox_done_idx.
	s.lastApplied = one(`SELECT ` + inboxColumns + ` FROM {inbox} WHERE consumer_group = ? AND status = 1 ORDER BY processed_at DESC LIMIT ?`)
	// inbox_open_idx.
	s.openStats = one(`SELECT consumer_group, count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 2),
 count(*) FILTER (WHERE status = 3), ifnull(max(attempts) FILTER (WHERE status = 2), 0), min(` + takenAt + `) FILTER (WHERE status = 2)
FROM {inbox} WHERE status <> 1 GROUP BY consumer_group ORDER BY consumer_group`)
	// Primary key: one step for each group, regardless of the number of
	// records.
	s.groups = one(`WITH RECURSIVE found(name) AS (SELECT min(consumer_group) FROM {inbox}
 UNION ALL SELECT (SELECT min(consumer_group) FROM {inbox} WHERE consumer_group > name) FROM found WHERE name IS NOT NULL)
SELECT name FROM found WHERE name IS NOT NULL`)

	// inbox_open_idx, or the primary key, and then the primary key.
	redrive := `UPDATE {inbox} SET status = 2, attempts = 0, owner = NULL, next_retry_at = ?2, processed_at = NULL
WHERE consumer_group = ?1 AND dedup_id IN (SELECT dedup_id FROM {inbox} WHERE consumer_group = ?1 AND `
	s.redriveDead = one(redrive + `status <> 1 AND status = 3 LIMIT ?)`)
	s.redriveKeys = each(redrive+`status IN (2, 3) AND dedup_id IN (LIST) LIMIT ?)`, "?")
	// inbox_done_idx, and then the primary key.
	s.purgeRecords = one(`DELETE FROM {inbox} WHERE consumer_group = ?1 AND dedup_id IN (SELECT dedup_id FROM {inbox}
 WHERE consumer_group = ?1 AND status = 1 AND processed_at < ?2 ORDER BY processed_at LIMIT ?3)`)
}
