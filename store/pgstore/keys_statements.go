package pgstore

import "strings"

// keyStatements are those of idempotency keys.
type keyStatements struct {
	takeNew, takeKey                string
	keepKey, keepLast, savePoint    string
	claimNew, claimKey              string
	endKey, failKey                 string
	renewKey, findKey, peekKey      string
	openKeys, allKeys, keyStats     string
	settleKey, reopenKey, purgeKeys string
}

func newKeyStatements(r func(string) string) keyStatements {
	return keyStatements{
		takeNew: r(takeNew), takeKey: r(takeKey), keepKey: r(keepKey), keepLast: r(keepLast), savePoint: r(savePoint),
		claimNew: r(claimNew), claimKey: r(claimKey), endKey: r(endKey), failKey: r(failKey), renewKey: r(renewKey), findKey: r(findKey), peekKey: r(peekKey),
		// idempotency_open_idx, or the primary key: both are (tenant, operation, key).
		openKeys: r(strings.ReplaceAll(listKeys, "{open}", "k.status <> 1 AND")), allKeys: r(strings.ReplaceAll(listKeys, "{open}", "")),
		keyStats: r(keyStats), settleKey: r(settleKey), reopenKey: r(reopenKey), purgeKeys: r(purgeKeys),
	}
}

// keyColumns is what every read of a record k returns, in the order of keyRow.dest: all but its name. Without a record the state is -1. An
// answer that has outlived its own time is not read.
const keyColumns = `coalesce(k.request_hash, ''), coalesce(k.status, -1), k.owner, coalesce(k.fence, 0),
 coalesce(k.attempts, 0), k.recovery_point, k.recovery_data, k.result_ref, {result}, k.content_type, coalesce(k.lost, false),
 coalesce(k.result_expires_at <= clock_timestamp(), false), coalesce(k.error_code, ''), coalesce(k.last_error, ''), k.lease_until, k.created_at,
 k.completed_at, k.expires_at, clock_timestamp()`

// wholeKey is keyColumns with the answer, and keyOutline without.
var (
	wholeKey = strings.ReplaceAll(keyColumns, "{result}",
		`CASE WHEN coalesce(k.result_expires_at > clock_timestamp(), true) THEN k.result END`)
	keyOutline = strings.ReplaceAll(keyColumns, "{result}", `NULL::bytea`)
)

const (
	// keyIs names a record by $1 to $3. Primary key of idempotency, and so are all statements up to listKeys.
	keyIs = `k.tenant = $1::bytea AND k.operation = $2::bytea AND k.key = $3::bytea`
	// isLive comes first wherever a record is looked at.
	isLive = `(k.expires_at IS NULL OR k.expires_at > clock_timestamp())`
	// isOver is the opposite. NOW stands for the clock.
	isOver = `coalesce(k.expires_at <= NOW, false)`
	// isFree says that whoever has the hash $4 may take the key.
	isFree = `(` + isOver + ` OR k.request_hash = $4::text AND (k.status = 2 OR k.status = 0 AND k.lease_until <= NOW))`
	// isHeld is the fence of an attempt: $4 owner, $5 fence. The lease is not looked at: it says when others may take the key, and who takes it
	// draws the next fence.
	isHeld = `k.status = 0 AND k.owner = $4::uuid AND k.fence = $5::bigint`
	// isTaken says that the transaction took the key for this attempt. Whoever ends one, or claims the key, forgets the taker.
	isTaken = `k.taker = $4::uuid AND k.fence = $5::bigint - 1`
	// keyTurn is the advisory lock of a key whose hash is $6: whoever makes its record has it until his transaction ends. Others can ask for it
	// and need not find out by waiting at the primary key. Another pair of tables has other locks, and so has the inbox.
	keyTurn = `hashint8extended($6::bigint, '{idempotency}'::regclass::oid::bigint)`
	// blankKey is what a record is made when it begins anew, but for what names and fences it.
	blankKey = `recovery_point = CASE WHEN {over} THEN NULL ELSE k.recovery_point END,
  recovery_data = CASE WHEN {over} THEN NULL ELSE k.recovery_data END, created_at = CASE WHEN {over} THEN {now} ELSE k.created_at END`
	// synced makes the statement it is part of commit synchronously, as durable does: a claim that a crash took back would run twice. As a condition
	// it costs nothing worth measuring.
	synced = `CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) IS NOT NULL ELSE true END`
	// fromNow is $n seconds from now.
	fromNow = `clock_timestamp() + $N::double precision * interval '1 second'`
	// whenOver is $n seconds from now, or never.
	whenOver = `coalesce(` + fromNow + `, 'infinity')`
)

func at(text, now string) string { return strings.ReplaceAll(text, "NOW", now) }

// later is fromNow for an argument, and over is whenOver.
func later(argument string) string { return strings.ReplaceAll(fromNow, "$N", argument) }
func over(argument string) string  { return strings.ReplaceAll(whenOver, "$N", argument) }

// takeKey takes a key for the caller's transaction. $4: the hash, $5: the owner, $6: the hash for the lock, $7: for how long the answer will be
// kept, in seconds, or NULL. It answers whether it was this
// transaction's turn (NULL: it is nobody's, because the record is not free), the fence of the attempt, or 0, and the record as it was.
//
// What it writes says no more than that this transaction has taken the key: a record that has expired before it was made, or a mark in
// the one that is there. If the transaction commits without an answer, it is as if nothing was written.
//
// A record that others have locked is passed over, not waited for. One that the snapshot does not show, because it was committed since, is
// not inserted again; then there is neither a fence nor a record, and it takes a new snapshot to see it.
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

// answerKey stores an answer: $6 ref, $7 result, $8 content type, $9 lost, $10 for how long in seconds, $11 for how long the answer, or NULL.
var answerKey = `status = 1, lease_until = NULL, taker = NULL, result_ref = $6::bytea, result = $7::bytea, content_type = $8::bytea,
  lost = $9::boolean, completed_at = clock_timestamp(), expires_at = ` + later("$10") + `, result_expires_at = ` + later("$11") + `,
  purge_at = least(k.purge_at, ` + later("$10") + `, ` + later("$11") + `), error_code = NULL, last_error = NULL`

// keepKey ends an attempt in the transaction that has its effects. $4: owner, $5: fence. The transaction took the key itself, or it was
// claimed.
var keepKey = `UPDATE {idempotency} k SET owner = $4::uuid, fence = $5::bigint, attempts = CASE WHEN k.fence = $5::bigint THEN k.attempts ELSE k.attempts + 1 END,
  ` + answerKey + `
WHERE ` + keyIs + ` AND (` + isHeld + ` OR ` + isTaken + `)`

// keepLast does the same in front of a COMMIT that is already on its way: if it finds nothing it fails, by dividing by zero, and the server skips the
// COMMIT.
var keepLast = `WITH kept AS (` + keepKey + ` RETURNING 1) SELECT 1 / count(*) FROM kept`

// savePoint stores $6, the name, and $7, the data, of a phase.
const savePoint = `UPDATE {idempotency} k SET recovery_point = $6::bytea, recovery_data = $7::bytea WHERE ` + keyIs + ` AND ` + isHeld

// claimNew takes a key that has no record, which is what most of them are: one plain insert, and no row if there is a record after all. $6: the
// lease in seconds, $7: as in takeKey, $8: when it was made. That is the one time which is not the server's, because nothing depends on it but that it
// stays as it is, and a RETURNING that tells it costs the request three percent. It does without the key's lock: who wants to take the key meanwhile
// waits for this one statement to commit.
var claimNew = `INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, owner, fence, attempts, lease_until, created_at, purge_at)
SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 0, $5::uuid, 1, 1, ` + later("$6") + `, $8::timestamptz, ` + over("$7") + ` WHERE ` + synced + `
ON CONFLICT (tenant, operation, key) DO NOTHING`

// takeNew is the same for takeKey, whose arguments it has.
var takeNew = `INSERT INTO {idempotency} (tenant, operation, key, request_hash, status, taker, fence, attempts, expires_at, purge_at)
SELECT $1::bytea, $2::bytea, $3::bytea, $4::text, 1, $5::uuid, 0, 0, clock_timestamp(), ` + over("$7") + `
WHERE pg_try_advisory_xact_lock(` + keyTurn + `)
ON CONFLICT (tenant, operation, key) DO NOTHING`

// claimKey takes a key for an attempt. $4: the hash, $5: the owner, $6: the hash for the lock, $7: for how long the answer will be
// kept, in seconds, or NULL, $8: the lease in seconds. It answers whether it was taken, and the record.
//
// Of many that find the key free, one makes the
// record, or changes it; the others wait for that, and then it does not fit. What has expired is judged by one time (created_at), the
// lease runs from when the waiting is over.
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

// endKey ends a claimed attempt as succeeded; its arguments are those of keepKey.
var endKey = `UPDATE {idempotency} k SET ` + answerKey + ` WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

// failKey ends a claimed attempt otherwise, whatever its lease: $6 the state, $7 the code, $8 the error, $9 for how long in seconds, or NULL.
var failKey = `UPDATE {idempotency} k SET status = $6::smallint, lease_until = NULL, error_code = nullif($7::text, ''),
  last_error = nullif($8::text, ''), completed_at = clock_timestamp(), expires_at = ` + later("$9") + `, purge_at = least(k.purge_at, ` + later("$9") + `)
WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

// renewKey makes the lease $6 seconds from now.
var renewKey = `UPDATE {idempotency} k SET lease_until = ` + later("$6") + ` WHERE ` + keyIs + ` AND ` + isHeld + ` AND ` + synced

var findKey = `SELECT ` + wholeKey + ` FROM {idempotency} k WHERE ` + keyIs + ` AND ` + isLive

// peekKey is what a repeat needs, and no more: it is the whole cost of one, and every column has its price.
const peekKey = `SELECT k.request_hash, k.result_ref, k.result, k.content_type FROM {idempotency} k
WHERE ` + keyIs + ` AND k.status = 1 AND NOT k.lost AND least(k.expires_at, k.result_expires_at) > clock_timestamp()`

// listKeys reads records behind $1 to $3. $4 and $5: the only tenant and operation, or nothing, $6: states.
var listKeys = `SELECT k.tenant, k.operation, k.key, ` + keyOutline + ` FROM {idempotency} k
WHERE {open} (k.tenant, k.operation, k.key) > ($1::bytea, $2::bytea, $3::bytea) AND ($4::bytea = '' OR k.tenant = $4::bytea)
  AND ($5::bytea = '' OR k.operation = $5::bytea) AND k.status = ANY($6::smallint[]) AND ` + isLive + `
ORDER BY k.tenant, k.operation, k.key LIMIT {limit}`

// keyStats: idempotency_open_idx.
const keyStats = `SELECT count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
 count(*) FILTER (WHERE status = 0 AND lease_until <= now()),
 greatest(coalesce(extract(epoch FROM clock_timestamp() - min(lease_until) FILTER (WHERE status = 0)), 0), 0)::double precision
FROM {idempotency} k WHERE status <> 1 AND ` + isLive

// settleKey decides that an uncertain record has succeeded: $4 to $9 are those of answerKey. reopenKey decides that it has failed: $4 code, $5
// error, $6 for how long in seconds.
var (
	settleKey = `UPDATE {idempotency} k SET ` +
		strings.NewReplacer("$6", "$4", "$7", "$5", "$8", "$6", "$9", "$7", "$10", "$8", "$11", "$9").Replace(answerKey) + `
WHERE ` + keyIs + ` AND k.status = 3 AND ` + synced
	reopenKey = `UPDATE {idempotency} k SET status = 2, error_code = nullif($4::text, ''), last_error = nullif($5::text, ''),
  completed_at = clock_timestamp(), expires_at = ` + later("$6") + `, purge_at = least(k.purge_at, ` + later("$6") + `)
WHERE ` + keyIs + ` AND k.status = 3 AND ` + synced
)

// purgeKeys deletes what has expired: records, and answers. $1: how many. Several may run at a time: each passes over what another has.
// idempotency_purge_idx finds the oldest, the primary key changes them. What must stay is put off until it may have expired. It answers how many
// were deleted, and how many put off.
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
