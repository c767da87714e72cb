package sqlitestore

import "strings"

// keyStatements are the statements of idempotency keys.
type keyStatements struct {
	// In the transaction that contains the effects.
	takeRecord, keepKey, savePoint, kept *statement
	// Outside that transaction.
	claimKey, endKey, failKey, renewKey *statement
	// Queries and maintenance.
	peekKey, findKey     *statement
	openKeys, allKeys    *statement
	keyStats             *statement
	settleKey, reopenKey *statement
	purgeKeys, stripKeys *statement
}

const (
	// keyColumns are the columns of a whole record, and whether it has an
	// answer, which may be empty. An answer past its own retention, at ?4, is
	// not read. keyOutline has no answer at all.
	keyColumns = `tenant, operation, key, request_hash, status, owner, fence, attempts, recovery_point, recovery_data, result_ref, RESULT, content_type,
 lost, ifnull(result_expires_at <= ?4, 0), error_code, last_error, lease_until, created_at, completed_at, expires_at, RESULT IS NOT NULL`
	// keyIs selects a record by ?1 to ?3. It uses the primary key of
	// idempotency, and so do all statements up to findKey.
	keyIs = `tenant = ?1 AND operation = ?2 AND key = ?3`
	// isHeld is the fence of an attempt: ?5 owner, ?6 fence. The condition
	// ignores the lease: the lease only decides when another owner may take the
	// key, and that owner draws the next fence. ?4 is the time in every
	// statement that needs one.
	isHeld = keyIs + ` AND status = 0 AND owner = ?5 AND fence = ?6`
	// isTaken is true if the transaction took the key for this attempt.
	isTaken = keyIs + ` AND status IN (0, 2) AND taker = ?5 AND fence = ?6 - 1`
	// isOver is checked before all other conditions. isFree is true if a
	// request with the hash ?5 may take the key.
	isOver = `ifnull(k.expires_at <= ?4, 0)`
	isFree = `(` + isOver + ` OR k.request_hash = ?5 AND (k.status = 2 OR k.status = 0 AND k.lease_until <= ?4))`
	// answerKey stores an answer: ?7 ref, ?8 result, ?9 content type, ?10 lost,
	// ?11 expiry of the record, ?12 expiry of the answer.
	answerKey = `status = 1, lease_until = NULL, taker = NULL, result_ref = ?7, result = ?8, content_type = ?9, lost = ?10, expires_at = ?11,
 result_expires_at = ?12, completed_at = ?4, error_code = NULL, last_error = NULL`
	// failedKey ends an attempt that did not succeed: ?7 state, ?8 code, ?9
	// error, ?10 expiry.
	failedKey = `status = ?7, lease_until = NULL, error_code = ?8, last_error = ?9, completed_at = ?4, expires_at = ?10`
	// isUncertain selects an uncertain record, which an operator resolves. ?5
	// and ?6 only keep the numbering of the parameters.
	isUncertain = keyIs + ` AND status = 3 AND ?5 IS NULL AND ?6 IS NULL`
	// purgedAt is the expression of idempotency_purge_idx.
	purgedAt = `iif(result IS NULL, expires_at, min(ifnull(result_expires_at, expires_at), expires_at))`
)

func (s *statements) keysStatements(one func(string) *statement) {
	whole := strings.ReplaceAll(keyColumns, "RESULT", `iif(ifnull(result_expires_at > ?4, 1), result, NULL)`)
	outline := strings.ReplaceAll(keyColumns, "RESULT", `NULL`)
	// renewed resets an expired record when it is taken.
	renewed := `recovery_point = iif(` + isOver + `, NULL, k.recovery_point), recovery_data = iif(` + isOver + `, NULL, k.recovery_data),
 created_at = iif(` + isOver + `, ?4, k.created_at)`

	// Taking a key inserts a row that is already expired, or sets a mark in the
	// existing row: if the transaction commits without an answer, the write has
	// no effect. ?6: the owner.
	s.takeRecord = one(`INSERT INTO {idempotency} AS k (tenant, operation, key, created_at, expires_at, request_hash, taker, status, fence, attempts)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, 2, 0, 0)
ON CONFLICT (tenant, operation, key) DO UPDATE SET taker = ?6, request_hash = ?5, status = iif(` + isOver + `, 2, k.status),
 attempts = iif(` + isOver + `, 0, k.attempts), result = NULL, result_expires_at = NULL, ` + renewed + `
WHERE ` + isFree + ` RETURNING fence + 1`)
	s.keepKey = one(`UPDATE {idempotency} SET attempts = attempts + (fence <> ?6), owner = ?5, fence = ?6, ` + answerKey + `
WHERE ` + isHeld + ` OR ` + isTaken)
	s.kept = one(`SELECT EXISTS (SELECT 1 FROM {idempotency} WHERE tenant = ? AND operation = ? AND key = ? AND owner = ? AND fence = ? AND status = 1)`)
	s.savePoint = one(`UPDATE {idempotency} SET recovery_point = ?7, recovery_data = ?8 WHERE ` + isHeld)

	// ?6: the owner, ?7: the end of the lease.
	s.claimKey = one(`INSERT INTO {idempotency} AS k (tenant, operation, key, created_at, request_hash, owner, lease_until, status, fence, attempts)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 1, 1)
ON CONFLICT (tenant, operation, key) DO UPDATE SET request_hash = ?5, owner = ?6, taker = NULL, lease_until = ?7, status = 0, fence = k.fence + 1,
 attempts = iif(` + isOver + `, 1, k.attempts + 1), result_ref = NULL, result = NULL, content_type = NULL, lost = 0, result_expires_at = NULL,
 error_code = NULL, last_error = NULL, completed_at = NULL, expires_at = NULL, ` + renewed + `
WHERE ` + isFree + ` RETURNING ` + whole)
	s.endKey = one(`UPDATE {idempotency} SET ` + answerKey + ` WHERE ` + isHeld)
	s.failKey = one(`UPDATE {idempotency} SET ` + failedKey + ` WHERE ` + isHeld)
	s.renewKey = one(`UPDATE {idempotency} SET lease_until = ?7 WHERE ` + isHeld)
	s.settleKey = one(`UPDATE {idempotency} SET ` + answerKey + ` WHERE ` + isUncertain)
	s.reopenKey = one(`UPDATE {idempotency} SET ` + failedKey + ` WHERE ` + isUncertain)
	s.peekKey = one(`SELECT request_hash, ifnull(result_ref, ''), result, ifnull(content_type, ''), result IS NOT NULL FROM {idempotency}
WHERE ` + keyIs + ` AND status = 1 AND NOT lost AND expires_at > ?4 AND ifnull(result_expires_at > ?4, 1)`)
	s.findKey = one(`SELECT ` + whole + ` FROM {idempotency} WHERE ` + keyIs + ` AND ifnull(expires_at > ?4, 1)`)

	// idempotency_open_idx, or the primary key: both are (tenant, operation,
	// key).
	list := func(where string) *statement {
		return one(`SELECT ` + outline + ` FROM {idempotency} WHERE ` + where + `(tenant, operation, key) > (?1, ?2, ?3) AND ifnull(expires_at > ?4, 1)
 AND (?5 = '' OR tenant = ?5) AND (?6 = '' OR operation = ?6) AND ?7 >> status & 1 ORDER BY tenant, operation, key LIMIT ?8`)
	}
	s.openKeys, s.allKeys = list(`status <> 1 AND `), list(``)
	// idempotency_open_idx.
	s.keyStats = one(`SELECT count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
 count(*) FILTER (WHERE status = 0 AND lease_until <= ?1), min(lease_until) FILTER (WHERE status = 0 AND lease_until <= ?1)
FROM {idempotency} WHERE status <> 1 AND ifnull(expires_at > ?1, 1)`)
	// idempotency_purge_idx, and then the row. ?1: the time, ?2: the limit.
	old := `rowid IN (SELECT rowid FROM {idempotency} WHERE expires_at IS NOT NULL AND ` + purgedAt + ` <= ?1 AND status IN (1, 2)`
	s.purgeKeys = one(`DELETE FROM {idempotency} WHERE ` + old + ` AND expires_at <= ?1 ORDER BY ` + purgedAt + ` LIMIT ?2)`)
	s.stripKeys = one(`UPDATE {idempotency} SET result = NULL WHERE ` + old + ` AND expires_at > ?1 ORDER BY ` + purgedAt + ` LIMIT ?2)`)
}
