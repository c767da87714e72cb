package pgstore

import "strings"

// keyStatements are the statements of idempotency keys.
type keyStatements struct {
	takeNew, takeKey                string
	lockKey, seeKey, insertKey      string
	keepKey, keepLast, savePoint    string
	claimNew, claimKey              string
	endKey, failKey                 string
	renewKey, findKey, peekKey      string
	openKeys, allKeys, keyStats     string
	settleKey, reopenKey, purgeKeys string
}

func newKeyStatements(r func(string) string) keyStatements {
	return keyStatements{
		takeNew: r(takeNew), takeKey: r(takeKey), lockKey: r(lockKey), seeKey: r(seeKey), insertKey: r(insertKey), keepKey: r(keepKey), keepLast: r(keepLast), savePoint: r(savePoint),
		claimNew: r(claimNew), claimKey: r(claimKey), endKey: r(endKey), failKey: r(failKey), renewKey: r(renewKey), findKey: r(findKey), peekKey: r(peekKey),
		// idempotency_open_idx, or the primary key: both are (tenant,
		// operation, key).
		openKeys: r(strings.ReplaceAll(listKeys, "{open}", "k.status <> 1 AND")), allKeys: r(strings.ReplaceAll(listKeys, "{open}", "")),
		keyStats: r(keyStats), settleKey: r(settleKey), reopenKey: r(reopenKey), purgeKeys: r(purgeKeys),
	}
}

// keyColumns are the columns of every read of a record k, in the order of
// keyRow.dest, without the key itself. Without a record the state is -1. An
// answer past its own retention is not read.
const keyColumns = `coalesce(k.request_hash, ''), coalesce(k.status, -1), k.owner, coalesce(k.fence, 0),
 coalesce(k.attempts, 0), k.recovery_point, k.recovery_data, k.result_ref, {result}, k.content_type, coalesce(k.lost, false),
 coalesce(k.result_expires_at <= clock_timestamp(), false), coalesce(k.error_code, ''), coalesce(k.last_error, ''), k.lease_until, k.created_at,
 k.completed_at, k.expires_at, clock_timestamp()`

// wholeKey is keyColumns with the answer, keyOutline without it.
var (
	wholeKey = strings.ReplaceAll(keyColumns, "{result}",
		`CASE WHEN coalesce(k.result_expires_at > clock_timestamp(), true) THEN k.result END`)
	keyOutline = strings.ReplaceAll(keyColumns, "{result}", `NULL::bytea`)
)

const (
	// keyIs selects a record by $1 to $3. It uses the primary key of
	// idempotency, and so do all statements up to listKeys.
	keyIs = `k.tenant = $1::bytea AND k.operation = $2::bytea AND k.key = $3::bytea`
	// isLive is the first condition of every read of a record.
	isLive = `(k.expires_at IS NULL OR k.expires_at > clock_timestamp())`
	// isOver is the negation of isLive. NOW is a placeholder for the clock.
	isOver = `coalesce(k.expires_at <= NOW, false)`
	// isFree is true if a request with the hash $4 may take the key.
	isFree = `(` + isOver + ` OR k.request_hash = $4::text AND (k.status = 2 OR k.status = 0 AND k.lease_until <= NOW))`
	// isHeld is the fence of an attempt: $4 owner, $5 fence. The condition
	// ignores the lease: the lease only decides when another owner may take the
	// key, and that owner draws the next fence.
	isHeld = `k.status = 0 AND k.owner = $4::uuid AND k.fence = $5::bigint`
	// isTaken is true if the transaction took the key for this attempt. The end
	// of an attempt and a claim of the key both clear the taker.
	isTaken = `k.taker = $4::uuid AND k.fence = $5::bigint - 1`
	// keyTurn is the advisory lock of a key whose hash is $6. The transaction
	// that creates the record holds the lock until it ends, so that other
	// transactions can test the lock instead of waiting at the primary key. The
	// locks of two sets of tables differ, and so do those of the inbox.
	keyTurn = `hashint8extended($6::bigint, '{idempotency}'::regclass::oid::bigint)`
	// blankKey resets a record that begins anew, except for its name and its
	// fence.
	blankKey = `recovery_point = CASE WHEN {over} THEN NULL ELSE k.recovery_point END,
  recovery_data = CASE WHEN {over} THEN NULL ELSE k.recovery_data END, created_at = CASE WHEN {over} THEN {now} ELSE k.created_at END`
	// synced makes its statement commit synchronously, as durable does: a claim
	// that a crash took back would run twice. As a condition its cost is not
	// measurable.
	synced = `CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) IS NOT NULL ELSE true END`
	// fromNow is $N seconds from now.
	fromNow = `clock_timestamp() + $N::double precision * interval '1 second'`
	// whenOver is $N seconds from now, or never.
	whenOver = `coalesce(` + fromNow + `, 'infinity')`
)

func at(text, now string) string { return strings.ReplaceAll(text, "NOW", now) }

// later is fromNow for an argument, and over is whenOver.
func later(argument string) string { return strings.ReplaceAll(fromNow, "$N", argument) }
func over(argument string) string  { return strings.ReplaceAll(whenOver, "$N", argument) }

// takeKey takes a key for the caller's transaction. $4: the hash, $5: the
// owner, $6: the hash for the lock, $7: the retention of the answer in seconds,
// or NULL. It returns whether this transaction got the lock (NULL: no lock was
// needed, because the record is not free), the fence of the attempt or 0, and
// the record as it was before.
//
// The statement only marks the key as taken by this transaction: it writes a
// record that is already expired, or a mark in the existing record. If the
// transaction commits without an answer, the mark has no effect.
//
// The statement skips a record that another transaction has locked; it does not
// wait. A record that is outside the snapshot, because it was committed after
// it, is not inserted again. In that case the statement returns neither a fence
// nor a record, and only a new snapshot shows the record.
var takeKey = `WITH seen AS MATERIALIZED (SELECT k.*, ` + at(isFree, "clock_timestamp()") + ` AS free FROM {idempotency} k WHERE ` + keyIs + `),
turn AS MATERIALIZED (
  SELECT CASE WHEN coalesce((SELECT free FROM seen), true) THEN pg_try_advisory_xact_lock(` + keyTurn + `) END AS ours, EXISTS (SELECT FROM seen) AS there
), made AS (
  INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, taker, fence, attempts, expires_at, purge_at)
  SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 1, $5::uuid, 0, 0, clock_timestamp(), ` + over("$7") + ` FROM turn WHERE ours AND NOT there
  ON CONFLICT (tenant, operation, key) DO NOTHING RETURNING fence
), locked AS MATERIALIZED (
  SELECT ` + at(isOver, "clock_timestamp()") + ` AS over FROM {idempotency} k
  WHERE (SELECT ours AND there FROM turn) AND ` + keyIs + ` AND ` + at(isFree, "clock_timestamp()") + ` FOR UPDATE SKIP LOCKED
), marked AS (
  UPDATE {idempotency} k SET taker = $5::uuid, request_hash = $4::text, status = CASE WHEN over THEN 1 ELSE k.status END, purge_at = ` + over("$7") + `,
  attempts = CASE WHEN over THEN 0 ELSE k.attempts END, result = NULL, result_expires_at = NULL, ` +
	strings.NewReplacer("{over}", "over", "{now}", "clock_timestamp()").Replace(blankKey) + `
  FROM locked WHERE ` + keyIs + ` AND ` + at(isFree, "clock_timestamp()") + ` RETURNING k.fence
)
SELECT turn.ours, coalesce((SELECT fence FROM made) + 1, (SELECT fence FROM marked) + 1, 0), ` + wholeKey + `
FROM turn LEFT JOIN seen k ON true`

// lockKey takes the lock of a key, if it is free, and returns the time at which
// the transaction began. $1: the hash for the lock.
var lockKey = `SELECT pg_try_advisory_xact_lock(` + strings.ReplaceAll(keyTurn, "$6", "$1") + `), now()`

// seeKey reads a record for a request whose transaction holds the lock: whether
// the record has an answer, and that answer.
const seeKey = `SELECT coalesce(k.status = 1 AND NOT k.lost AND least(k.expires_at, k.result_expires_at) > clock_timestamp(), false),
 k.request_hash, k.result_ref, k.result, k.content_type FROM {idempotency} k WHERE ` + keyIs

// insertKey creates the record of a new key together with its answer: $1 to $11
// are the arguments of keepKey, $12 the hash of the request, and $13 the time
// at which the transaction that took the key began. In another transaction the
// statement fails with a division by zero. insertKey has no ON CONFLICT: if a
// record exists, the statement fails too, and the server skips the COMMIT
// behind it.
var insertKey = `INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, owner, fence, attempts, result_ref, result, content_type,
 lost, created_at, completed_at, expires_at, result_expires_at, purge_at)
VALUES ($1::bytea, $2::bytea, $3::bytea, $12::text, 1, $4::uuid, $5::bigint / (now() = $13::timestamptz)::integer, 1, $6::bytea, $7::bytea, $8::bytea,
 $9::boolean, now(), clock_timestamp(), ` + later("$10") + `, ` + later("$11") + `, least(` + later("$10") + `, ` + later("$11") + `))`

// answerKey stores an answer: $6 ref, $7 result, $8 content type, $9 lost, $10
// the retention of the record in seconds, $11 the retention of the answer, or
// NULL.
var answerKey = `status = 1, lease_until = NULL, taker = NULL, result_ref = $6::bytea, result = $7::bytea, content_type = $8::bytea,
  lost = $9::boolean, completed_at = clock_timestamp(), expires_at = ` + later("$10") + `, result_expires_at = ` + later("$11") + `,
  purge_at = least(k.purge_at, ` + later("$10") + `, ` + later("$11") + `), error_code = NULL, last_error = NULL`

// keepKey ends an attempt in the transaction that contains its effects. $4:
// owner, $5: fence. The key was taken by the transaction itself or was claimed
// before.
var keepKey = `UPDATE {idempotency} k SET owner = $4::uuid, fence = $5::bigint, attempts = CASE WHEN k.fence = $5::bigint THEN k.attempts ELSE k.attempts + 1 END,
  ` + answerKey + `
WHERE ` + keyIs + ` AND (` + isHeld + ` OR ` + isTaken + `)`

// keepLast is keepKey in front of a COMMIT in the same round trip. If keepLast
// finds no record it fails with a division by zero, and the server skips the
// COMMIT.
var keepLast = `WITH kept AS (` + keepKey + ` RETURNING 1) SELECT 1 / count(*) FROM kept`

// savePoint stores the name ($6) and the data ($7) of a recovery point.
const savePoint = `UPDATE {idempotency} k SET recovery_point = $6::bytea, recovery_data = $7::bytea WHERE ` + keyIs + ` AND ` + isHeld

// claimNew claims a key that has no record, which is the common case: one plain
// insert, which returns no row if a record exists. $6: the lease in seconds,
// $7: as in takeKey, $8: the creation time, $9: the hash for the lock. The
// creation time is the only time that is not the server's: nothing depends on
// it except that it does not change, and a RETURNING clause for it costs the
// request three percent. claimNew waits for the key's lock, because a
// transaction that has taken a new key may have no record yet.
var claimNew = `INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, owner, fence, attempts, lease_until, created_at, purge_at)
SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 0, $5::uuid, 1, 1, ` + later("$6") + `, $8::timestamptz, ` + over("$7") + `
WHERE ` + synced + ` AND pg_advisory_xact_lock(` + strings.ReplaceAll(keyTurn, "$6", "$9") + `) IS NOT NULL
ON CONFLICT (tenant, operation, key) DO NOTHING`

// takeNew is claimNew for takeKey, with the arguments of takeKey.
var takeNew = `INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, taker, fence, attempts, expires_at, purge_at)
SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 1, $5::uuid, 0, 0, clock_timestamp(), ` + over("$7") + `
WHERE pg_try_advisory_xact_lock(` + keyTurn + `)
ON CONFLICT (tenant, operation, key) DO NOTHING`

// claimKey claims a key for an attempt. $4: the hash, $5: the owner, $6: the
// hash for the lock, $7: the retention of the answer in seconds, or NULL, $8:
// the lease in seconds. It returns whether the key was claimed, and the record.
//
// Of several claims that find the key free, one creates or changes the record;
// the others wait for that statement, and then the condition no longer matches.
// Expiry is checked against one time (created_at); the lease starts after the
// wait.
var claimKey = `WITH seen AS MATERIALIZED (
  SELECT * FROM {idempotency} k WHERE ` + keyIs + ` AND NOT ` + at(isFree, "clock_timestamp()") + `
), ` + durable + `, alone AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(` + keyTurn + `) FROM durable WHERE NOT EXISTS (SELECT FROM seen)
), taken AS (
  INSERT INTO {idempotency} AS k (tenant, operation, key, request_hash, status, owner, fence, attempts, lease_until, created_at, purge_at)
  SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 0, $5::uuid, 1, 1, ` + later("$8") + `, clock_timestamp(), ` + over("$7") + ` FROM alone
  ON CONFLICT (tenant, operation, key) DO UPDATE SET request_hash = excluded.request_hash, status = 0, owner = excluded.owner, taker = NULL,
  fence = k.fence + 1, attempts = CASE WHEN ` + at(isOver, "excluded.created_at") + ` THEN 1 ELSE k.attempts + 1 END, lease_until = ` + later("$8") + `,
  result_ref = NULL, result = NULL, content_type = NULL, lost = false, result_expires_at = NULL, error_code = NULL, last_error = NULL,
  completed_at = NULL, expires_at = NULL, purge_at = excluded.purge_at, ` +
	strings.NewReplacer("{over}", at(isOver, "excluded.created_at"), "{now}", "excluded.created_at").Replace(blankKey) + `
  WHERE ` + at(isFree, "excluded.created_at") + ` RETURNING k.*
)
SELECT true, ` + wholeKey + ` FROM taken k UNION ALL SELECT false, ` + wholeKey + ` FROM seen k`

// endKey ends a claimed attempt as succeeded, with the arguments of keepKey.
var endKey = `UPDATE {idempotency} k SET ` + answerKey + ` WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

// failKey ends a claimed attempt in another state, regardless of its lease: $6
// the state, $7 the code, $8 the error, $9 the retention in seconds, or NULL.
var failKey = `UPDATE {idempotency} k SET status = $6::smallint, lease_until = NULL, error_code = nullif($7::text, ''),
  last_error = nullif($8::text, ''), completed_at = clock_timestamp(), expires_at = ` + later("$9") + `, purge_at = least(k.purge_at, ` + later("$9") + `)
WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

// renewKey sets the lease to $6 seconds from now.
var renewKey = `UPDATE {idempotency} k SET lease_until = ` + later("$6") + ` WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

var findKey = `SELECT ` + wholeKey + ` FROM {idempotency} k WHERE ` + keyIs + ` AND ` + isLive

// peekKey reads only the columns that a repeated request needs: the statement
// is the whole cost of a repeat, and every column adds to it.
const peekKey = `SELECT k.request_hash, k.result_ref, k.result, k.content_type FROM {idempotency} k
WHERE ` + keyIs + ` AND k.status = 1 AND NOT k.lost AND least(k.expires_at, k.result_expires_at) > clock_timestamp()`

// listKeys reads records after $1 to $3. $4 and $5: a tenant and an operation,
// or nothing, $6: states.
var listKeys = `SELECT k.tenant, k.operation, k.key, ` + keyOutline + ` FROM {idempotency} k
WHERE {open} (k.tenant, k.operation, k.key) > ($1::bytea, $2::bytea, $3::bytea) AND ($4::bytea = '' OR k.tenant = $4::bytea)
  AND ($5::bytea = '' OR k.operation = $5::bytea) AND k.status = ANY($6::smallint[]) AND ` + isLive + `
ORDER BY k.tenant, k.operation, k.key LIMIT {limit}`

// keyStats uses idempotency_open_idx.
const keyStats = `SELECT count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
 count(*) FILTER (WHERE status = 0 AND lease_until <= now()),
 greatest(coalesce(extract(epoch FROM clock_timestamp() - min(lease_until) FILTER (WHERE status = 0)), 0), 0)::double precision
FROM {idempotency} k WHERE status <> 1 AND ` + isLive

// settleKey resolves an uncertain record as succeeded: $4 to $9 are the
// arguments of answerKey. reopenKey resolves it as failed: $4 code, $5 error,
// $6 the retention in seconds.
var (
	settleKey = `UPDATE {idempotency} k SET ` +
		strings.NewReplacer("$6", "$4", "$7", "$5", "$8", "$6", "$9", "$7", "$10", "$8", "$11", "$9").Replace(answerKey) + `
WHERE ` + keyIs + ` AND k.status = 3 AND ` + synced
	reopenKey = `UPDATE {idempotency} k SET status = 2, error_code = nullif($4::text, ''), last_error = nullif($5::text, ''),
  completed_at = clock_timestamp(), expires_at = ` + later("$6") + `, purge_at = least(k.purge_at, ` + later("$6") + `)
WHERE ` + keyIs + ` AND k.status = 3 AND ` + synced
)

// purgeKeys deletes expired records and expired answers. $1: the limit.
// Concurrent runs are safe: each skips the rows that another has locked.
// idempotency_purge_idx finds the oldest records, the primary key changes them.
// A record that must stay is deferred until it may have expired. The statement
// returns the number of deleted and of deferred records.
const purgeKeys = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
old AS MATERIALIZED (
  SELECT tenant, operation, key, status IN (1, 2) AND coalesce(expires_at <= (SELECT now FROM clock), false) AS over,
  status IN (1, 2) AND result IS NOT NULL AND coalesce(result_expires_at <= (SELECT now FROM clock), false) AS stale
  FROM {idempotency} WHERE purge_at <= (SELECT now FROM clock) ORDER BY purge_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {idempotency} k USING old o WHERE o.over AND k.tenant = o.tenant AND k.operation = o.operation AND k.key = o.key RETURNING 1
), stripped AS (
  UPDATE {idempotency} k SET result = NULL, purge_at = coalesce(k.expires_at, 'infinity') FROM old o
  WHERE NOT o.over AND o.stale AND k.tenant = o.tenant AND k.operation = o.operation AND k.key = o.key RETURNING 1
), later AS (
  UPDATE {idempotency} k SET purge_at = coalesce(CASE WHEN k.status NOT IN (1, 2) THEN NULL WHEN k.result IS NULL THEN k.expires_at
  ELSE least(k.result_expires_at, k.expires_at) END, 'infinity')
  FROM old o WHERE NOT o.over AND NOT o.stale AND k.tenant = o.tenant AND k.operation = o.operation AND k.key = o.key RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM stripped), (SELECT count(*) FROM later)`
