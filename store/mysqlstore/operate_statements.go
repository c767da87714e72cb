package mysqlstore

import (
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// operateStatements holds the SQL that inspects the outbox, handles dead
// letters and maintains the tables.
type operateStatements struct {
	lateProven, late, finish         string
	stats, nodes, lanes              string
	find                             string
	count, list                      [4]string
	lockDead, replay                 string
	lockDeadIDs, dropDead            string
	lockHolding, unblock             [2]string // dead, delayed
	purgeHistory, purgeDead          string
	moveHistoryFrom                  string
	oldReady                         string
	lockHeartbeat, dueNow            string
	makeReady, dropMoved             string
	purgeWritten, freeKeys           string
	keyPage, forgetNodes, liveRelay  string
	lockTables, laneGuards           string
	freeLane, guardLane              string
	rehash                           [3]string
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

// place describes how the rows of a state are stored.
type place struct {
	table string
	// more lists the columns after the event's own: due time, attempts, replay,
	// holds, last error, end time.
	more string
	// keys are the columns that identify a row; join compares them.
	keys, join string
	// index is the index in the order of seq; without one, the table is scanned
	// and only the keys are sorted.
	index string
	// attempts and holds are the columns that filters use.
	attempts, holds string
}

const (
	byKey    = `o.lane = k.lane AND o.seq = k.seq`
	byID     = `o.id = k.id`
	byNumber = `o.number = k.number`
	tried    = `o.attempts, o.replay, o.holds, CAST(o.last_error AS BINARY), `
)

var places = [...]place{
	store.Ready: {"{outbox}", micros + `o.available_at), 0, 0, 0, NULL, NULL`, `lane, seq`, byKey, `FORCE INDEX (seq)`, `0`, `0`},
	store.Delayed: {
		"{delayed}", micros + `o.due_at), ` + tried + `NULL`, `id`, byID, ``, `attempts`, `holds`,
	},
	store.Dead: {
		"{dead}", `NULL, ` + tried + micros + `o.died_at)`, `id`, byID, ``, `attempts`, `holds`,
	},
	store.Delivered: {
		"{history}", `NULL, o.attempts, o.replay, 0, NULL, ` + micros + `o.done_at)`, `number`, byNumber, ``, `attempts`, `0`,
	},
}

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
		nodes: r(`SELECT id, relay FROM {node} WHERE expires_at > TIMESTAMP'{now}' ORDER BY id`),
		lanes: r(`SELECT l.lane, l.owner, EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = l.owner AND n.expires_at > TIMESTAMP'{now}'), l.epoch
FROM {lane} AS l ORDER BY l.lane`),

		// Primary key of dead, or delayed, up to unblock.
		lockDead: r(`SELECT o.id, o.seq, COALESCE(o.tenant_id, ''), COALESCE(o.dedup_key, '') FROM ` + idTable + `
STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id) FOR UPDATE /*!80001 OF o */`),
		// A replayed ordered event holds its aggregate, so that it keeps its
		// place before later events.
		replay: r(`INSERT INTO {delayed} (lane, seq, {events}, created_at, due_at, attempts, replay, holds, last_error)
SELECT o.lane, o.seq, {o.events}, o.created_at, TIMESTAMP'{now}', 0, o.replay + 1, COALESCE(o.aggregate_id, '') <> '', o.last_error
FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),
		lockDeadIDs: r(`SELECT o.id, ` + micros + `o.created_at) FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id) FOR UPDATE /*!80001 OF o */`),
		dropDead:    r(`DELETE o FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)`),

		// The index done_at of history, and died_at of dead.
		purgeHistory: r(`DELETE FROM {history} WHERE done_at < TIMESTAMP'{before}' ORDER BY done_at LIMIT {limit}`),
		purgeDead:    r(`DELETE FROM {dead} WHERE died_at < TIMESTAMP'{before}' ORDER BY died_at LIMIT {limit}`),
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
		lockTables: r(`LOCK TABLES {outbox} WRITE, {delayed} WRITE, {dead} WRITE, {lane} WRITE, {node} WRITE, {setting} WRITE`),
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
	for i, table := range []string{"{dead}", "{delayed}"} {
		s.lockHolding[i] = r(`SELECT o.id, ` + micros + `o.created_at) FROM ` + idTable + ` STRAIGHT_JOIN ` + table + ` AS o FORCE INDEX (PRIMARY)
ON o.id = UNHEX(k.id) WHERE o.holds = 1 FOR UPDATE /*!80001 OF o */`)
		s.unblock[i] = r(`UPDATE ` + idTable + ` STRAIGHT_JOIN ` + table + ` AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id) SET o.holds = 0`)
	}
	for state, p := range places {
		s.count[state] = r(`SELECT COUNT(*) FROM ` + p.table + ` WHERE {fits}`)
		whole := `SELECT ` + strconv.Itoa(state) + ` AS state, ` + readColumns + `, ` + p.more
		s.list[state] = r(whole + ` FROM (SELECT ` + p.keys + ` FROM ` + p.table + ` ` + p.index + ` WHERE seq > {after} AND {fits}
 ORDER BY seq LIMIT {limit}) AS k STRAIGHT_JOIN ` + p.table + ` AS o FORCE INDEX (PRIMARY) ON ` + p.join)
		if state > 0 {
			s.find += "\nUNION ALL "
		}
		// Unique id of outbox, primary keys of delayed and dead, index id of
		// history.
		s.find += r(whole + ` FROM ` + p.table + ` AS o WHERE o.id = UNHEX('{id}')`)
	}
	return s
}
