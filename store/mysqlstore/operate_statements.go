package mysqlstore

import "github.com/waybillhq/waybill"

// operateStatements holds the SQL that inspects the outbox, handles dead
// letters and maintains the tables.
type operateStatements struct {
	lateProven, late, finish         string
	stats, nodes, lanes              string
	purgeHistory, moveHistoryFrom    string
	oldReady                         string
	lockHeartbeat, dueNow            string
	makeReady, dropMoved             string
	purgeWritten, freeKeys           string
	keyPage, forgetNodes, liveRelay  string
	lockTables, laneGuards           string
	freeLane, guardLane              string
	rehash                           [6]string
	lanesNow, raiseEpochs, dropLanes string
	insertLanes, readSetting         string
}

const (
	aggregateColumns = `tenant_id, aggregate_type, aggregate_id`
	// unordered is the condition of an event without an aggregate.
	unordered = `COALESCE(aggregate_id, '') = ''`
	// shownType is the aggregate type as a decoded row shows it.
	shownType = `COALESCE(NULLIF(aggregate_type, ''), '` + waybill.GlobalAggregate + `')`
	// laneExpression computes the lane of a row, as the table's default does.
	laneExpression = `CASE WHEN ` + unordered + `
 THEN CONV(RIGHT(HEX(id), 8), 16, 10) % {modulus}
 ELSE CONV(LEFT(SHA2(CONCAT(COALESCE(tenant_id, ''), 0x1f, aggregate_type, 0x1f, aggregate_id), 256), 8), 16, 10) % {modulus} END`
)

// laneGuard is the table's constraint on the lane of a row: the lane exists,
// and an ordered event is in the lane of its aggregate.
const laneGuard = `lane >= 0 AND lane < {modulus} AND (` + unordered + `
 OR lane = CONV(LEFT(SHA2(CONCAT(COALESCE(tenant_id, ''), 0x1f, aggregate_type, 0x1f, aggregate_id), 256), 8), 16, 10) % {modulus})`

func newOperateStatements(r func(string) string) operateStatements {
	s := operateStatements{
		// Primary key of delayed. The row without an id is returned if a
		// transaction is open.
		lateProven: r(`SELECT NULL AS id FROM DUAL WHERE @@in_transaction AND @@autocommit
UNION ALL SELECT o.id FROM ` + idTable + ` STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),
		late:   r(`SELECT o.id FROM ` + idTable + ` STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),
		finish: r(`CALL {finish}('{fences}', '{ready}', '{late}')`),

		// Counts scan a table or its smallest index; the oldest row of a lane
		// is the first by the primary key.
		stats: r(`SELECT ` + micros + `UTC_TIMESTAMP(6)), (SELECT COUNT(*) FROM {outbox}),
 (SELECT ` + micros + `MIN(o.created_at)) FROM {lane} AS l STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = l.lane
  AND o.seq = (SELECT m.seq FROM {outbox} AS m FORCE INDEX (PRIMARY) WHERE m.lane = l.lane ORDER BY m.seq LIMIT 1)),
 d.n - d.failed, d.failed, d.attempts, e.n, d.holding + e.holding
FROM (SELECT COUNT(*) AS n, COALESCE(SUM(attempts > 0), 0) AS failed, COALESCE(MAX(attempts), 0) AS attempts,
  COALESCE(SUM(holds), 0) AS holding FROM {delayed}) AS d,
 (SELECT COUNT(*) AS n, COALESCE(SUM(holds), 0) AS holding FROM {dead}) AS e`),
		nodes: r(`SELECT id, relay, ` + micros + `expires_at), COALESCE(report, '') FROM {node} WHERE expires_at > TIMESTAMP'{now}' ORDER BY id`),
		lanes: r(`SELECT l.lane, l.owner, EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = l.owner AND n.expires_at > TIMESTAMP'{now}'), l.epoch
FROM {lane} AS l ORDER BY l.lane`),

		// The index done_at of history.
		purgeHistory: r(`DELETE FROM {history} WHERE done_at < TIMESTAMP'{before}' ORDER BY done_at LIMIT {limit}`),
		// Times are UTC texts of equal length and sort chronologically; "never"
		// sorts after all of them.
		moveHistoryFrom: r(`INSERT INTO {setting} (name, value) VALUES ('history_from', '{from}')
ON DUPLICATE KEY UPDATE value = IF(value < CAST('{from}' AS BINARY), '{from}', value)`),
		// Index seq of outbox, whose order is close to that of created_at. The
		// age of a delayed event counts from its due time.
		oldReady: r(`SELECT lane, seq, id, dedup_key IS NOT NULL FROM {outbox} FORCE INDEX (seq)
WHERE created_at < TIMESTAMP'{before}' AND (available_at IS NULL OR available_at < TIMESTAMP'{before}') ORDER BY seq LIMIT {limit}`),
		purgeWritten: r(`CALL {purge_written}('{ready}', '{late}')`),
		freeKeys:     r(`CALL {free_keys}('{ids}')`),
		// Index due of delayed (lane, due_at, seq), once per lane; then the
		// primary key. An event whose id is already among the ready events
		// stays delayed.
		lockHeartbeat: r(`SELECT value FROM {setting} WHERE name = 'lanes' FOR UPDATE`),
		dueNow: r(`SELECT d.id FROM {lane} AS l STRAIGHT_JOIN {delayed} AS d FORCE INDEX (due) ON d.lane = l.lane AND d.due_at <= UTC_TIMESTAMP(6)
WHERE NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id) ORDER BY d.due_at, d.seq LIMIT {limit}`),
		makeReady: r(`INSERT INTO {outbox} (lane, seq, {events}, created_at, available_at)
SELECT o.lane, o.seq, {o.events}, o.created_at, o.due_at FROM ` + idTable + `
STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id) ORDER BY o.due_at, o.seq`),
		dropMoved: r(`DELETE o FROM ` + idTable + ` STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),
		// Primary key of dedup.
		keyPage: r(`SELECT d.tenant_id, d.dedup_key, d.id,
 EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id) OR EXISTS (SELECT 1 FROM {delayed} AS l WHERE l.id = d.id)
FROM {dedup} AS d FORCE INDEX (PRIMARY) WHERE d.tenant_id = ? AND d.dedup_key > ? OR d.tenant_id > ?
ORDER BY d.tenant_id, d.dedup_key LIMIT {limit}`),
		forgetNodes: r(`DELETE FROM {node} WHERE expires_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY`),

		liveRelay: r(`SELECT relay FROM {node} WHERE expires_at > UTC_TIMESTAMP(6) LIMIT 1`),
		// Under LOCK TABLES a statement may name a table only once, and only by
		// its own name.
		lockTables: r(`LOCK TABLES {outbox} WRITE, {delayed} WRITE, {dead} WRITE, {backlog} WRITE, {backlog_delayed} WRITE, {backlog_dead} WRITE,
 {lane} WRITE, {node} WRITE, {setting} WRITE, {audit} WRITE`),
		// The names of constraints. Not every server lets a session that has
		// locked tables query them.
		laneGuards: r(`SELECT constraint_name FROM information_schema.table_constraints WHERE table_name = '{prefix}outbox'
 AND constraint_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND LEFT(constraint_name, CHAR_LENGTH('{prefix}lanes_')) = '{prefix}lanes_'`),
		freeLane:    r("ALTER TABLE {outbox} ALTER COLUMN lane SET DEFAULT (" + laneExpression + "){drop}"),
		guardLane:   r("ALTER TABLE {outbox} ADD CONSTRAINT `{prefix}lanes_{modulus}` CHECK (" + laneGuard + ")"),
		lanesNow:    r(`SELECT COALESCE(MAX(lane), -1), COALESCE(MAX(epoch), 0), COALESCE(MAX(in_flight), 0), COALESCE(MAX(dirty OR owner IS NOT NULL), 0) FROM {lane}`),
		raiseEpochs: r(`UPDATE {lane} SET epoch = epoch + 1, owner = NULL, token = NULL, in_flight = ?, dirty = ?`),
		dropLanes:   r(`DELETE FROM {lane} WHERE lane >= ?`),
		insertLanes: r(`INSERT INTO {lane} (lane, epoch, in_flight, dirty) VALUES `),
		readSetting: r(`SELECT value FROM {setting} WHERE name = ?`),
	}
	for i, table := range []string{"{outbox}", "{delayed}", "{dead}"} {
		s.rehash[i] = r(`UPDATE ` + table + ` SET lane = ` + laneExpression + ` WHERE lane <> ` + laneExpression)
	}
	// A row of a backlog keeps its base; see sqlstore.BaseLane.
	for i, table := range []string{"{backlog}", "{backlog_delayed}", "{backlog_dead}"} {
		s.rehash[3+i] = r(`UPDATE ` + table + ` SET lane = lane DIV 1024 * 1024 + (` + laneExpression + `) WHERE lane % 1024 <> ` + laneExpression)
	}
	return s
}
