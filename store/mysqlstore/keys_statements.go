package mysqlstore

import "strings"

// keyStatements holds the SQL of idempotency keys. Values are inserted into the
// text, in place of braces: a statement with arguments would cost the driver a
// second round trip.
type keyStatements struct {
	takeKey, probeKey, lockKey      string
	keepKey, keepProven             string
	savePoint, saveProven           string
	claimKey, claimReturning        string
	endKey, failKey, renewKey       string
	lookKey, judgeKey, peekKey      string
	listKeys, keyStats              string
	settleKey, reopenKey            string
	oldKeys, dropKeys, stripAnswers string
}

const (
	// keyColumns are the columns of a whole record, in forms that the driver
	// does not convert, and the time of the read. An expired answer is not
	// read.
	keyColumns = `i.tenant, i.operation, i.idem_key, i.request_hash, i.status, i.owner, i.fence, i.attempts, i.recovery_point, i.recovery_data,
 i.result_ref, {result}, i.content_type, i.lost, COALESCE(i.result_expires_at <= UTC_TIMESTAMP(6), FALSE), CAST(i.error_code AS BINARY),
 CAST(i.last_error AS BINARY), ` + micros + `i.lease_until), ` + micros + `i.created_at), ` + micros + `i.completed_at), ` +
		micros + `i.expires_at), ` + micros + `UTC_TIMESTAMP(6))`
	// takenBy is a column before a record's own that reports whether the record
	// has a mark.
	takenBy = `COALESCE(i.taker = x'{mark}', FALSE)`
	// keyIs identifies a record. Primary key of idempotency, as in all
	// statements up to listKeys.
	keyIs = `tenant = x'{tenant}' AND operation = x'{operation}' AND idem_key = x'{key}'`
	// isHeld checks the fence of an attempt. It ignores the lease: the lease
	// defines when other runs may take the key, and a run that takes it
	// increments the fence.
	isHeld = `status = 0 AND owner = x'{owner}' AND fence = {fence}`
	// isTaken is the condition that the transaction took the key for this
	// attempt.
	isTaken = `status IN (0, 2) AND taker = x'{owner}' AND fence = {fence} - 1`
	// isOver reports that a record has expired and takes precedence; isFree
	// reports that a request with the same hash may take the key.
	isOver = `COALESCE(expires_at <= UTC_TIMESTAMP(6), FALSE)`
	isFree = `(` + isOver + ` OR request_hash = x'{hash}' AND (status = 2 OR status = 0 AND lease_until <= UTC_TIMESTAMP(6)))`
	// ours reports that this statement has just taken the key and set its mark.
	// Assignments run in order, and later ones see the results of earlier ones:
	// taker comes first, and the columns that isOver reads come last.
	ours = `taker = x'{mark}'`
	// blankKey clears an expired record.
	blankKey = `recovery_point = IF(` + ours + ` AND ` + isOver + `, NULL, recovery_point),
 recovery_data = IF(` + ours + ` AND ` + isOver + `, NULL, recovery_data), created_at = IF(` + ours + ` AND ` + isOver + `, UTC_TIMESTAMP(6), created_at),
 request_hash = IF(` + ours + `, x'{hash}', request_hash), result = IF(` + ours + `, NULL, result), result_expires_at = IF(` + ours + `, NULL, result_expires_at)`
	// answerKey stores an answer.
	answerKey = `status = 1, lease_until = NULL, taker = NULL, result_ref = {ref}, result = {result}, content_type = {type}, lost = {lost},
 completed_at = UTC_TIMESTAMP(6), expires_at = UTC_TIMESTAMP(6) + INTERVAL {retention} MICROSECOND,
 result_expires_at = UTC_TIMESTAMP(6) + INTERVAL {answer} MICROSECOND, error_code = NULL, last_error = NULL`
	// failedKey ends an attempt that did not succeed.
	failedKey = `status = {state}, lease_until = NULL, completed_at = UTC_TIMESTAMP(6), expires_at = UTC_TIMESTAMP(6) + INTERVAL {retention} MICROSECOND,
 error_code = CONVERT({code} USING utf8mb4), last_error = CONVERT({error} USING utf8mb4)`
	// keyNames is a table of keys, given as JSON: [["tenant in hexadecimal",
	// "operation", "key"], …].
	keyNames = `JSON_TABLE('{keys}', '$[*]' COLUMNS (t VARCHAR(128) PATH '$[0]', o VARCHAR(256) PATH '$[1]', k VARCHAR(510) PATH '$[2]')) AS n
STRAIGHT_JOIN {idempotency} AS i FORCE INDEX (PRIMARY) ON i.tenant = UNHEX(n.t) AND i.operation = UNHEX(n.o) AND i.idem_key = UNHEX(n.k)`
)

func newKeyStatements(r func(string) string) keyStatements {
	whole := fill(keyColumns, "{result}", `IF(COALESCE(i.result_expires_at > UTC_TIMESTAMP(6), TRUE), i.result, NULL)`)
	outline := fill(keyColumns, "{result}", `NULL`)
	keep := `UPDATE {idempotency} SET attempts = attempts + (fence <> {fence}), owner = x'{owner}', fence = {fence}, ` + answerKey + `
WHERE ` + keyIs + ` AND (` + isHeld + ` OR ` + isTaken + `)`
	// The last insert id signals that the record was found, even if it already
	// had this point, or this lease.
	save := `UPDATE {idempotency} SET recovery_point = IF(LAST_INSERT_ID(1) = 1, {point}, NULL), recovery_data = {result} WHERE ` + keyIs + ` AND ` + isHeld
	claim := `INSERT INTO {idempotency} (tenant, operation, idem_key, request_hash, status, owner, taker, fence, attempts, lease_until, created_at)
VALUES (x'{tenant}', x'{operation}', x'{key}', x'{hash}', 0, x'{owner}', x'{mark}', 1, 1, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND,
 UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE taker = IF(` + isFree + `, x'{mark}', taker), owner = IF(` + ours + `, x'{owner}', owner),
 fence = IF(` + ours + `, fence + 1, fence), attempts = IF(` + ours + `, IF(` + isOver + `, 1, attempts + 1), attempts),
 lease_until = IF(` + ours + `, UTC_TIMESTAMP(6) + INTERVAL {lease} MICROSECOND, lease_until), result_ref = IF(` + ours + `, NULL, result_ref),
 content_type = IF(` + ours + `, NULL, content_type), lost = IF(` + ours + `, FALSE, lost), error_code = IF(` + ours + `, NULL, error_code),
 last_error = IF(` + ours + `, NULL, last_error), completed_at = IF(` + ours + `, NULL, completed_at), ` + blankKey + `,
 status = IF(` + ours + `, 0, status), expires_at = IF(` + ours + `, NULL, expires_at)`
	const find = ` FROM {idempotency} AS i WHERE ` + keyIs
	const live = ` AND COALESCE(i.expires_at > UTC_TIMESTAMP(6), TRUE)`
	return keyStatements{
		// Taking a key creates a row that is already expired, or marks the
		// existing row: if the transaction commits without an answer, the
		// effect is as if nothing was written. The last insert id signals that
		// a row existed; see takeKeys.
		takeKey: r(`INSERT INTO {idempotency} (tenant, operation, idem_key, request_hash, status, taker, fence, attempts, created_at, expires_at)
VALUES (x'{tenant}', x'{operation}', x'{key}', x'{hash}', 2, {proof}, 0, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE taker = IF(LAST_INSERT_ID(1) = 1 AND ` + isFree + `, x'{mark}', taker), ` + blankKey + `,
 attempts = IF(` + ours + ` AND ` + isOver + `, 0, attempts), status = IF(` + ours + ` AND ` + isOver + `, 2, status)`),
		probeKey: r(`SELECT fence` + find + ` FOR UPDATE NOWAIT`),
		lockKey:  r(`SELECT ` + takenBy + `, ` + whole + find + ` FOR UPDATE`),
		lookKey:  r(`SELECT FALSE, ` + whole + find + live),
		// The statement is the whole cost of a repeat, so it reads only the
		// columns that a repeat needs.
		peekKey: r(`SELECT i.request_hash, i.result_ref, i.result, i.content_type` + find + ` AND i.status = 1 AND NOT i.lost
 AND i.expires_at > UTC_TIMESTAMP(6) AND COALESCE(i.result_expires_at > UTC_TIMESTAMP(6), TRUE)`),
		keepKey: r(keep), keepProven: r(keep + ` AND ` + openProof),
		savePoint: r(save), saveProven: r(save + ` AND ` + openProof),

		claimKey:       r(claim),
		claimReturning: r(claim + ` RETURNING ` + strings.ReplaceAll(takenBy+`, `+whole, "i.", "")),
		judgeKey:       r(`SELECT ` + takenBy + `, ` + whole + find + live),
		endKey:         r(`UPDATE {idempotency} SET ` + answerKey + ` WHERE ` + keyIs + ` AND ` + isHeld),
		failKey:        r(`UPDATE {idempotency} SET ` + failedKey + ` WHERE ` + keyIs + ` AND ` + isHeld),
		renewKey: r(`UPDATE {idempotency} SET lease_until = UTC_TIMESTAMP(6) + INTERVAL IF(LAST_INSERT_ID(1) = 1, {lease}, 0) MICROSECOND
WHERE ` + keyIs + ` AND ` + isHeld),
		settleKey: r(`UPDATE {idempotency} SET ` + answerKey + ` WHERE ` + keyIs + ` AND status = 3`),
		reopenKey: r(`UPDATE {idempotency} SET ` + failedKey + ` WHERE ` + keyIs + ` AND status = 3`),

		// Index status (status, status_at), and a sort. If succeeded records
		// are listed, the primary key, without a sort.
		listKeys: r(`SELECT FALSE, ` + outline + ` FROM {idempotency} AS i FORCE INDEX ({index}) WHERE i.status IN ({numbers})
 AND (i.tenant > x'{tenant}' OR i.tenant = x'{tenant}' AND (i.operation > x'{operation}' OR i.operation = x'{operation}' AND i.idem_key > x'{key}'))
` + live + `{where} ORDER BY i.tenant, i.operation, i.idem_key LIMIT {limit}`),
		// The index status.
		keyStats: r(`SELECT COALESCE(SUM(status = 0), 0), COALESCE(SUM(status = 2), 0), COALESCE(SUM(status = 3), 0),
 COALESCE(SUM(status = 0 AND lease_until <= UTC_TIMESTAMP(6)), 0),
 COALESCE(GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(IF(status = 0, lease_until, NULL)), UTC_TIMESTAMP(6)), 0), 0)
FROM {idempotency} AS i FORCE INDEX (status) WHERE status IN (0, 2, 3)` + live),
		// Index status, then the primary key. A locked row is left for the next
		// purge.
		oldKeys: r(`SELECT tenant, operation, idem_key, ` + isOver + ` FROM {idempotency} FORCE INDEX (status)
WHERE status = {state} AND status_at <= UTC_TIMESTAMP(6) ORDER BY status_at LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		dropKeys:     r(`DELETE i FROM ` + keyNames),
		stripAnswers: r(`UPDATE ` + keyNames + ` SET i.result = NULL`),
	}
}
