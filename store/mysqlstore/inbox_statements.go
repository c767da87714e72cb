package mysqlstore

// inboxStatements holds the SQL of the inbox.
type inboxStatements struct {
	noWait, accept, acceptMet, acceptRow string
	lookRecords, lockRecords             string
	probeRecords                         string
	succeed, succeedProven               string
	claimNew, claimAgain, giveUp         string
	failNew, failHeld, giveBack          string
	findRecord, dueRecords, listRecords  string
	lastApplied                          string
	openStats, groups                    string
	redriveDead, redriveKeys             string
	oldRecords, dropRecords              string
}

const (
	// intakeColumns are the columns of a received event.
	intakeColumns = `consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash`
	// recordColumns are the columns of a whole record, in forms that the driver
	// does not convert, and the time of the read.
	recordColumns = `i.consumer_group, i.dedup_id, i.event_id, i.tenant_id, i.event_type, i.payload_hash, i.status, i.owner, i.fence, i.attempts, ` +
		micros + `i.lease_until), ` + micros + `i.next_retry_at), ` + micros + `i.processed_at), ` + micros + `i.received_at),
 CAST(i.last_error AS BINARY), i.event, ` + micros + `UTC_TIMESTAMP(6))`
	// recordTable is a table of record keys, given as JSON: [["group in
	// hexadecimal", "key in hexadecimal"], …].
	recordTable = `JSON_TABLE('{keys}', '$[*]' COLUMNS (name VARCHAR(510) PATH '$[0]', id CHAR(32) PATH '$[1]')) AS k
STRAIGHT_JOIN {inbox} AS i FORCE INDEX (PRIMARY) ON i.consumer_group = UNHEX(k.name) AND i.dedup_id = UNHEX(k.id)`
	// heldRecord checks the fence of an attempt.
	heldRecord = `consumer_group = ? AND dedup_id = ? AND status = 0 AND owner = ? AND fence = ?`
	// openProof is a condition that can only be evaluated in an open
	// transaction; see proven.
	openProof = `IF(@@in_transaction AND @@autocommit, 1, ~0 + 1) = 1`
	fromNow   = `UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND`
)

func newInboxStatements(r func(string) string) inboxStatements {
	const succeed = `UPDATE {inbox} SET status = 1, processed_at = UTC_TIMESTAMP(6), lease_until = NULL
WHERE consumer_group = x'{group}' AND dedup_id = x'{key}' AND status = 0 AND owner = x'{owner}' AND fence = {fence}`
	return inboxStatements{
		// Primary key of inbox, up to findRecord. The last insert id signals
		// that a row existed; see takeKeys.
		noWait: `SET STATEMENT innodb_lock_wait_timeout = 0 FOR `,
		accept: r(`INSERT INTO {inbox} (owner, status, fence, attempts, processed_at, received_at, ` + intakeColumns + `) VALUES `),
		acceptRow: `({owner}, 1, 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), x'{group}', x'{key}', x'{event}', x'{tenant}', x'{type}', ` +
			`x'{hash}')`,
		acceptMet:     ` ON DUPLICATE KEY UPDATE owner = IF(LAST_INSERT_ID(1) = 1, owner, owner)`,
		lookRecords:   r(`SELECT ` + recordColumns + ` FROM ` + recordTable),
		lockRecords:   r(`SELECT ` + recordColumns + ` FROM ` + recordTable + ` FOR UPDATE /*!80001 OF i */`),
		probeRecords:  r(`SELECT i.fence FROM ` + recordTable + ` FOR UPDATE /*!80001 OF i */ NOWAIT`),
		succeed:       r(succeed),
		succeedProven: r(succeed + ` AND ` + openProof),

		claimNew: r(`INSERT INTO {inbox} (` + intakeColumns + `, status, owner, fence, attempts, lease_until, received_at, event)
VALUES (?, ?, ?, ?, ?, ?, 0, ?, 1, 1, ` + fromNow + `, UTC_TIMESTAMP(6), ?)`),
		claimAgain: r(`UPDATE {inbox} SET status = 0, owner = ?, fence = fence + 1, attempts = attempts + 1, lease_until = ` + fromNow + `,
 next_retry_at = NULL, event = COALESCE(?, event)
WHERE consumer_group = ? AND dedup_id = ? AND event_type = ? AND payload_hash = ? AND attempts < ?
 AND (status = 0 AND lease_until <= UTC_TIMESTAMP(6) OR status = 2 AND next_retry_at <= UTC_TIMESTAMP(6))`),
		// The condition identifies the record as it was read: every change of a
		// record changes its status, its fence or its attempts.
		giveUp: r(`UPDATE {inbox} SET status = 3, processed_at = UTC_TIMESTAMP(6), lease_until = NULL, next_retry_at = NULL,
 last_error = ` + utf8Argument + ` WHERE consumer_group = ? AND dedup_id = ? AND status = ? AND fence = ? AND attempts = ?`),
		failNew: r(`INSERT INTO {inbox} (` + intakeColumns + `, status, next_retry_at, processed_at, last_error, event, fence, attempts, received_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ` + fromNow + `, IF(?, UTC_TIMESTAMP(6), NULL), ` + utf8Argument + `, ?, 1, 1, UTC_TIMESTAMP(6))`),
		failHeld: r(`UPDATE {inbox} SET status = ?, next_retry_at = ` + fromNow + `, processed_at = IF(?, UTC_TIMESTAMP(6), NULL),
 last_error = ` + utf8Argument + `, event = COALESCE(?, event), owner = NULL, lease_until = NULL WHERE ` + heldRecord),
		giveBack: r(`UPDATE {inbox} SET status = 2, attempts = attempts - 1, next_retry_at = UTC_TIMESTAMP(6), owner = NULL, lease_until = NULL
WHERE ` + heldRecord),
		findRecord: r(`SELECT ` + recordColumns + ` FROM {inbox} AS i WHERE i.consumer_group = ? AND i.dedup_id = ?`),

		// The index status (status, consumer_group, status_at), once for each
		// status.
		dueRecords: r(`(SELECT ` + recordColumns + ` FROM {inbox} AS i FORCE INDEX (status) WHERE i.status = 0 AND i.consumer_group = x'{group}'
 AND i.status_at <= UTC_TIMESTAMP(6) AND i.event IS NOT NULL ORDER BY i.status_at LIMIT {limit})
UNION ALL (SELECT ` + recordColumns + ` FROM {inbox} AS i FORCE INDEX (status) WHERE i.status = 2 AND i.consumer_group = x'{group}'
 AND i.status_at <= UTC_TIMESTAMP(6) AND i.event IS NOT NULL ORDER BY i.status_at LIMIT {limit})`),
		// The index status.
		lastApplied: r(`SELECT ` + recordColumns + ` FROM {inbox} AS i FORCE INDEX (status) WHERE i.status = 1 AND i.consumer_group = ?
ORDER BY i.status_at DESC LIMIT {limit}`),
		// Index status, and a sort. If succeeded records are listed, the
		// primary key, without a sort.
		listRecords: r(`SELECT ` + recordColumns + ` FROM {inbox} AS i FORCE INDEX ({index}) WHERE i.status IN ({numbers}) AND i.attempts >= {attempts}
 AND (i.consumer_group = ? AND i.dedup_id > ? OR i.consumer_group > ?){where} ORDER BY i.consumer_group, i.dedup_id LIMIT {limit}`),
		// The index status.
		openStats: r(`SELECT consumer_group, SUM(status = 0), SUM(status = 2), SUM(status = 3), MAX(IF(status = 2, attempts, 0)),
 COALESCE(GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(IF(status = 2, next_retry_at, NULL)), UTC_TIMESTAMP(6)), 0), 0)
FROM {inbox} FORCE INDEX (status) WHERE status IN (0, 2, 3) GROUP BY consumer_group`),
		// Primary key: one step for each group.
		groups: r(`SELECT DISTINCT consumer_group FROM {inbox} FORCE INDEX (PRIMARY)`),

		// The index status; primary key.
		redriveDead: r(`UPDATE {inbox} FORCE INDEX (status) SET ` + redriven + ` WHERE status = 3 AND consumer_group = ? LIMIT {limit}`),
		redriveKeys: r(`UPDATE {inbox} FORCE INDEX (PRIMARY) SET ` + redriven + ` WHERE consumer_group = ? AND dedup_id IN ({marks})
 AND status IN (2, 3) ORDER BY dedup_id LIMIT {limit}`),
		// Index status, then the primary key. A record that another transaction
		// has locked is left for the next purge.
		oldRecords: r(`SELECT dedup_id FROM {inbox} FORCE INDEX (status) WHERE status = 1 AND consumer_group = ?
 AND status_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY status_at LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		dropRecords: r(`DELETE i FROM ` + recordTable),
	}
}

// redriven resets a record so that it is retried.
const redriven = `status = 2, attempts = 0, next_retry_at = UTC_TIMESTAMP(6), owner = NULL, processed_at = NULL`
