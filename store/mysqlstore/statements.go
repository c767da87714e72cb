package mysqlstore

import (
	"strings"

	"github.com/waybillhq/waybill/internal/eventrow"
)

// statements are the SQL of the store, with the configured names in place. Comments name the index that each uses. Numbers that are
// put into a statement's text are the program's own: lanes, seqs and limits, and ids as hexadecimal digits.
type statements struct {
	facts, isolation              string
	setSetting                    string
	insertHead, insertDelayed     string
	present, presentProven        string
	proveOpen, anyFound           string
	takeKeys, keyTaken, keyStates string
	holder, takeOver              string
	drawnSeqs, dropDrawn          string
	probe                         [2]string
	found                         string
	laneStates, heartbeat         string
	forgetNode, lanesOf           string
	takeLanes, freeLanes          string
	fetchKeys, fetch, load        string
	sweep, dueKeys, due           string
	drawn, definition, writers    string
	holds, followKeys, urgentKeys string
	plain                         string
	settle                        string
	operateStatements
	inboxStatements
	keyStatements
	jobStatements
}

// The ways to write a value that belongs to one moment of the database, whatever the session's time zone and the driver's
// settings: times are read as microseconds since 1970 and written as the text of a UTC time.
const (
	micros = `TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', `
	// utf8Argument is a text whose argument is hexadecimal: UTF-8, whatever the connection's character set says it is.
	utf8Argument = `CONVERT(UNHEX(?) USING utf8mb4)`
	// proven is an argument that can only be evaluated in a transaction that is open; anywhere else the statement fails with
	// "out of range", before it does anything. It costs no round trip. Without autocommit the variable says nothing.
	proven = `IF(@@in_transaction AND @@autocommit, ?, ~0 + 1)`
	// provenBytes is the same for an argument that is not a number.
	provenBytes = `IF(@@in_transaction AND @@autocommit, ?, CAST(~0 + 1 AS BINARY))`
)

// readColumns is what every read of whole rows returns, in the order of eventrow's Record. The clock's own row has lane -1 and
// the time in created_at: it is how a page without rows has a time.
var (
	readColumns = readable()
	clockRow    = `SELECT -1 AS lane, 0 AS seq, x'' AS id, x'' AS type, NULL AS aggregate_type, NULL AS aggregate_id, NULL AS tenant_id,
 NULL AS topic, NULL AS routing_key, NULL AS schema_id, 0 AS schema_version, NULL AS dedup_key, NULL AS occurred_at, 0 AS priority,
 NULL AS correlation_id, NULL AS causation_id, NULL AS headers, NULL AS content_type, NULL AS payload, ` + micros + `UTC_TIMESTAMP(6)) AS created_at,
 NULL AS due_at, 0 AS attempts, 0 AS replay, 0 AS holds, NULL AS last_error`
)

// readable returns the columns of a whole row as the driver gives them back unchanged: texts as bytes, times as numbers.
func readable() string {
	columns := []string{"o.lane", "o.seq"}
	for _, name := range eventrow.Columns() {
		switch name {
		case "occurred_at":
			columns = append(columns, micros+"o.occurred_at)")
		case "headers":
			columns = append(columns, "CAST(o.headers AS BINARY)")
		default:
			columns = append(columns, "o."+name)
		}
	}
	return strings.Join(append(columns, micros+"o.created_at)"), ", ")
}

func newStatements(cfg Config) statements {
	r := cfg.replacer().Replace
	return statements{
		operateStatements: newOperateStatements(r),
		inboxStatements:   newInboxStatements(r),
		keyStatements:     newKeyStatements(r),
		jobStatements:     newJobStatements(r),

		facts: r(`SELECT VERSION(), @@max_allowed_packet, @@autocommit,
 COALESCE((SELECT value FROM {setting} WHERE name = 'lanes'), ''),
 COALESCE((SELECT GROUP_CONCAT(CONCAT(table_name, ' is ', engine) ORDER BY table_name SEPARATOR ', ') FROM information_schema.tables
  WHERE table_name IN (` + marks(len(tables)) + `) AND table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND engine <> 'InnoDB'), '')`),
		isolation:  `SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')`,
		setSetting: r(`INSERT INTO {setting} (name, value) VALUES (?, ?) ON DUPLICATE KEY UPDATE value = ?`),

		insertHead:    r(`INSERT INTO {outbox} (`),
		insertDelayed: r(`INSERT INTO {delayed} (`),

		// Unique id of outbox, primary key of delayed.
		present: r(`SELECT id FROM {outbox} WHERE id IN ({marks}) UNION ALL SELECT id FROM {delayed} WHERE id IN ({marks})`),
		presentProven: r(`SELECT NULL AS id FROM DUAL WHERE @@in_transaction
UNION ALL SELECT id FROM {outbox} WHERE id IN ({marks}) UNION ALL SELECT id FROM {delayed} WHERE id IN ({marks})`),

		// It fails with "out of range" where no transaction is open, and answers without rows. DO
		// would make a warning of the error.
		proveOpen: `SET @waybill_open = IF(@@in_transaction AND @@autocommit, 1, ~0 + 1)`,
		// Unique id of outbox, primary keys of delayed and dead, id of history.
		anyFound: r(`SELECT COALESCE(MAX(EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = UNHEX(k.id)) OR EXISTS (SELECT 1 FROM {delayed} AS o WHERE o.id = UNHEX(k.id))
 OR EXISTS (SELECT 1 FROM {dead} AS o WHERE o.id = UNHEX(k.id)) OR EXISTS (SELECT 1 FROM {history} AS o WHERE o.id = UNHEX(k.id))), 0) FROM ` + idTable),

		// Primary key of dedup. The last insert id, which the table does not have, is the sign that a row was met; the number of rows
		// that were affected is not, because the driver can be told to count others.
		takeKeys: r(`INSERT INTO {dedup} (id, tenant_id, dedup_key) VALUES `),
		keyTaken: r(` ON DUPLICATE KEY UPDATE id = IF(LAST_INSERT_ID(1) = 1, id, id)`),
		// And unique id of outbox, primary key of delayed.
		keyStates: r(`SELECT d.tenant_id, d.dedup_key, d.id,
 EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id) OR EXISTS (SELECT 1 FROM {delayed} AS l WHERE l.id = d.id)
FROM {dedup} AS d WHERE `),
		holder:   r(`SELECT id FROM {dedup} WHERE tenant_id = ? AND dedup_key = ? FOR UPDATE`),
		takeOver: r(`UPDATE {dedup} SET id = ? WHERE tenant_id = ? AND dedup_key = ?`),

		// The rows of the transaction itself. They are read without a lock, by the unique id, and
		// then named by the primary key: a locking read through the unique id would lock the gap
		// below it, where other producers insert.
		drawnSeqs: r(`SELECT o.id, o.lane, o.seq, ` + micros + `o.created_at), ` + micros + `o.available_at)
FROM ` + idTable + ` STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(k.id)`),
		dropDrawn: r(`DELETE o FROM ` + keyTable + `
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),

		// Unique id of outbox; primary key of delayed.
		probe: [2]string{
			r(`SELECT lane FROM {outbox} WHERE id = ? FOR UPDATE NOWAIT`),
			r(`SELECT lane FROM {delayed} WHERE id = ? FOR UPDATE NOWAIT`),
		},
		// And primary key of dead, id of history.
		found: r(`SELECT EXISTS (SELECT 1 FROM {outbox} WHERE id = k.id) OR EXISTS (SELECT 1 FROM {delayed} WHERE id = k.id)
 OR EXISTS (SELECT 1 FROM {dead} WHERE id = k.id) OR EXISTS (SELECT 1 FROM {history} WHERE id = k.id),
 COALESCE((SELECT value FROM {setting} WHERE name = 'history_from'), '') FROM (SELECT CAST(? AS BINARY(16)) AS id) AS k`),

		heartbeat: r(`CALL {heartbeat}(?, ?, ?)`),
		// Primary keys of lane and node. The first row says whether the node itself is live.
		laneStates: r(`SELECT -1 AS lane, 0 AS epoch, NULL AS owner, 0 AS dirty, 0 AS in_flight,
 EXISTS (SELECT 1 FROM {node} WHERE id = ? AND expires_at > UTC_TIMESTAMP(6)) AS live
UNION ALL SELECT l.lane, l.epoch, l.owner, l.dirty, l.in_flight,
 EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = l.owner AND n.expires_at > UTC_TIMESTAMP(6)) FROM {lane} AS l`),
		forgetNode: r(`DELETE FROM {node} WHERE id = ?`),
		lanesOf:    r(`SELECT lane, token FROM {lane} WHERE owner = ?`),
		takeLanes:  r(`UPDATE {lane} SET owner = ?, epoch = epoch + 1, token = `),
		freeLanes:  r(`UPDATE {lane} SET owner = NULL, token = NULL, dirty = ? WHERE `),

		// Primary key of outbox (lane, seq), once per lane; the whole rows are looked up by it.
		fetchKeys: r(`(SELECT lane, seq FROM {outbox} FORCE INDEX (PRIMARY) WHERE {where} ORDER BY seq LIMIT {limit})`),
		fetch: r(clockRow + ` UNION ALL SELECT ` + readColumns + `, ` + micros + `o.available_at), 0, 0, 0, NULL
FROM ({keys}) AS k STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),
		load: r(clockRow + ` UNION ALL SELECT ` + readColumns + `, ` + micros + `o.available_at), 0, 0, 0, NULL
FROM ` + keyTable + ` STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),
		// Whoever has written, or is about to, has a lock.
		drawn:      r(`SELECT COALESCE(MAX(seq), 0) FROM {outbox}`),
		definition: r(`SHOW CREATE TABLE {outbox}`),
		writers:    `SELECT trx_id, trx_rows_modified > 0 OR trx_lock_structs > 0, trx_query FROM information_schema.innodb_trx`,
		sweep:      r(`(SELECT lane, seq, id, ` + aggregateColumns + ` FROM {outbox} FORCE INDEX (PRIMARY) WHERE {where} ORDER BY seq LIMIT {limit})`),
		// And what does not fit is passed over.
		followKeys: r(`SELECT lane, seq FROM {outbox} FORCE INDEX (PRIMARY) WHERE {where} AND aggregate_id = ? AND ` + shownType + ` = ?
 AND COALESCE(tenant_id, '') = ? ORDER BY seq LIMIT {limit}`),
		// The index seq of outbox (seq, priority), which has the lane as well; the others are
		// looked up by primary key.
		urgentKeys: r(`SELECT -1 AS lane, COALESCE(MAX(seq), 0) AS seq, NULL AS id, NULL AS tenant_id, NULL AS aggregate_type, NULL AS aggregate_id FROM {outbox}
UNION ALL SELECT o.lane, o.seq, o.id, o.tenant_id, o.aggregate_type, o.aggregate_id
FROM (SELECT lane, seq FROM {outbox} FORCE INDEX (seq) WHERE seq > {first} AND priority > 0 AND lane IN ({numbers}) ORDER BY seq LIMIT {limit}) AS k
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),
		// Primary key of outbox (lane, seq).
		plain: r(`SELECT ` + aggregateColumns + `, MIN(seq) FROM {outbox} FORCE INDEX (PRIMARY)
WHERE {where} AND priority <= 0 AND aggregate_id IN ({ids}) GROUP BY ` + aggregateColumns),
		// The index due of delayed (lane, due_at, seq), which has the id as well. The first that is not due tells when to come back.
		dueKeys: r(`(SELECT ` + micros + `due_at), seq, id, 1 FROM {delayed} FORCE INDEX (due)
 WHERE lane = {number} AND due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT {limit})
UNION ALL (SELECT ` + micros + `due_at), seq, id, 0 FROM {delayed} FORCE INDEX (due)
 WHERE lane = {number} AND due_at > UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT 1)`),
		// Primary key of delayed.
		due: r(clockRow + ` UNION ALL SELECT ` + readColumns + `, ` + micros + `o.due_at), o.attempts, o.replay, o.holds, CAST(o.last_error AS BINARY)
FROM ` + idTable + `
STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id) WHERE o.due_at <= UTC_TIMESTAMP(6)`),

		// The index holds (lane, holds) of each.
		holds: r(`SELECT lane, seq, id, ` + aggregateColumns + `, 0 FROM {delayed} FORCE INDEX (holds) WHERE lane IN ({numbers}) AND holds = 1
UNION ALL SELECT lane, seq, id, ` + aggregateColumns + `, 1 FROM {dead} FORCE INDEX (holds) WHERE lane IN ({numbers}) AND holds = 1`),

		settle: r(`CALL {settle}(?, ?, ?, ?, ?, ?)`),
	}
}

// keyTable is a table of keys, given as JSON: [[lane, seq], …].
const keyTable = `JSON_TABLE('{keys}', '$[*]' COLUMNS (lane INT PATH '$[0]', seq BIGINT PATH '$[1]')) AS k`

// idTable is a table of ids, given as JSON: ["hexadecimal", …].
const idTable = `JSON_TABLE('{ids}', '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS k`

// marks returns n question marks.
func marks(n int) string { return strings.Repeat(", ?", n)[2:] }

// fill puts one text, made by the program, into a statement's brace.
func fill(statement, brace, text string) string { return strings.ReplaceAll(statement, brace, text) }
