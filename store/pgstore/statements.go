package pgstore

import (
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// statements are the SQL statements of the store, with the configured names.
// Comments name the index that each statement uses.
type statements struct {
	lanes, setSetting            string
	insertOne, insertMany        string
	insertWith, holders          string
	present                      string
	openTransactions, found      string
	lockNodes, join, renew, live string
	acquire                      string
	release, leave               string
	keepTimeline                 string
	fetch, sweep, load, due      string
	drawn, drawers               string
	fetchRaw                     string
	holds, follow, urgent, plain string
	settle                       map[settleKind]string
	finish, finishLast           string
	stats, members, find, recent string
	statsUpTo, recentFloor       string
	list, count                  map[store.State]string
	deadBy                       [narrowed]listing
	replay, discard, unblock     string
	purge                        map[store.State]string
	purgeWritten, forgetNodes    string
	makeReady, freeOrphans       string
	days, forgetDay              string
	anyLive                      string
	setLanes                     []string
	countLanes                   string
	noteAudit                    string
	listAudit, purgeAudit        string
	listRollups                  string
	mergeRollups, purgeRollups   string
	causeStatements
	backlogStatements
	destinationStatements
	jobStatements
	inboxStatements
	keyStatements
}

// inboxStatements are the statements of the inbox.
type inboxStatements struct {
	acceptEvent, acceptEvents, acceptUnseen, succeedAttempt string
	claimEvent, markRecordDead                              string
	failNew, failHeld, releaseHeld                          string
	findRecord, dueRecords                                  string
	openRecords, allRecords, lastApplied                    string
	openStats, allGroups                                    string
	redriveDead, redriveNamed, purgeRecords                 string
}

func newInboxStatements(r func(string) string) inboxStatements {
	return inboxStatements{
		acceptEvent:  r(acceptEvent),
		acceptEvents: r(acceptEvents), acceptUnseen: r(acceptUnseen), succeedAttempt: r(succeedAttempt),
		claimEvent: r(claimEvent), markRecordDead: r(markRecordDead),
		failNew: r(failNew), failHeld: r(failHeld), releaseHeld: r(releaseHeld),
		findRecord: r(findRecord), dueRecords: r(dueRecords), lastApplied: r(lastApplied),
		// inbox_open_idx, or the primary key: both are (consumer_group,
		// dedup_id).
		openRecords: r(strings.ReplaceAll(listRecords, "{open}", "r.status <> 1 AND")), allRecords: r(strings.ReplaceAll(listRecords, "{open}", "")),
		openStats: r(openStats), allGroups: r(allGroups),
		redriveDead: r(strings.ReplaceAll(redriveRecords, "{which}", deadOnes)), redriveNamed: r(strings.ReplaceAll(redriveRecords, "{which}", namedOnes)),
		purgeRecords: r(purgeRecords),
	}
}

// eventColumns are the event's columns, separated by commas.
var eventColumns = strings.Join(eventrow.Columns(), ", ")

// readColumns are the columns of every read of whole rows, in the order of
// record.dest. NULL reads as the zero value. The rows come from the right side
// of an outer join, so that the clock is returned even if there are no rows;
// the lane is -1 then.
const readColumns = `coalesce(lane, -1), coalesce(seq, 0), id, coalesce(type, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''),
 coalesce(tenant_id, ''), coalesce(topic, ''), coalesce(routing_key, ''), coalesce(schema_id, ''), coalesce(schema_version, 1),
 coalesce(dedup_key, ''), coalesce(occurred_at, now()), coalesce(priority, 0), coalesce(correlation_id, ''), coalesce(causation_id, ''),
 coalesce(headers, ''), coalesce(content_type, ''), payload, coalesce(created_at, now())`

// readyColumns are the columns of a ready row r of the outbox.
const readyColumns = readColumns + `, r.available_at, 0, 0, false, '', now()` + readTimeline

// readTimeline is the last column of every read for deliveries.
const readTimeline = `, (SELECT {timeline}())`

// aggregateColumns are the columns by which an event is ordered, as they read.
// An event without an aggregate id is not ordered.
const aggregateColumns = `coalesce(tenant_id, ''), ` + aggregateType + `, coalesce(aggregate_id, '')`

// aggregateType is the type of an aggregate. An empty type is the default type,
// as in eventrow.Finish.
const aggregateType = `coalesce(nullif(aggregate_type, ''), '` + waybill.GlobalAggregate + `')`

// insertArrays is the table that insertMany and insertWith build from their
// arrays. PostgreSQL fills a shorter array up with NULLs, so a column that is
// empty in all events is sent as NULL instead of an array.
const insertArrays = `unnest($1::smallint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
 $10::integer[], $11::text[], $12::timestamptz[], $13::smallint[], $14::text[], $15::text[], $16::text[], $17::text[], $18::bytea[]`

const insertColumns = `lane, id, type, aggregate_type, aggregate_id, tenant_id, topic, routing_key, schema_id, schema_version, dedup_key,
 occurred_at, priority, correlation_id, causation_id, headers, content_type, payload`

// insertValues is insertColumns after the lane, with the defaults of columns
// that an array may omit.
const insertValues = `id, type, aggregate_type, aggregate_id, tenant_id, topic, routing_key, schema_id, coalesce(schema_version, 1), dedup_key,
 occurred_at, coalesce(priority, 0), correlation_id, causation_id, headers, content_type, payload`

// rightLane is the lane of a row, as the trigger chooses it and driver.LaneOf
// computes it. {n} is the number of lanes.
const rightLane = `CASE WHEN coalesce(aggregate_id, '') = '' THEN {lane_of}('', '', id::text, {n})
  ELSE {lane_of}(tenant_id, aggregate_type, aggregate_id, {n}) END`

// countedLane is the lane that the writer chose, if the writer assumed the
// current number of lanes.
var countedLane = `CASE WHEN $21::integer = {lane_count}() THEN lane ELSE ` + strings.ReplaceAll(rightLane, "{n}", "{lane_count}()") + ` END`

func newStatements(names *strings.Replacer) statements {
	r := names.Replace
	upTo, all := boundStats(countRows)
	return statements{
		lanes: r(`SELECT value FROM {setting} WHERE name = 'lanes'`),
		setSetting: r(`INSERT INTO {setting} AS s (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value`),

		// The last argument of each insert is the number of lanes that its
		// writer assumes. If the number has changed, the statement omits the
		// lane, the trigger chooses it, and the statement returns the current
		// number, negated. In the plan only the comparison of two numbers
		// remains. A change of the number waits for the transactions that have
		// inserted, and every INSERT waits for the change and is planned again
		// after it, even in a transaction whose snapshot is older.
		insertOne: r(`WITH put AS (INSERT INTO {outbox} (` + insertColumns + `)
VALUES (CASE WHEN $19::integer = {lane_count}() THEN $1::smallint END,
 $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18))
SELECT -{lane_count}()::bigint WHERE $19::integer <> {lane_count}()`),
		insertMany: r(`WITH put AS (INSERT INTO {outbox} (` + insertColumns + `)
SELECT CASE WHEN $19::integer = {lane_count}() THEN lane END, ` + insertValues + ` FROM ` + insertArrays + `) AS i(` + insertColumns + `))
SELECT -{lane_count}()::bigint WHERE $19::integer <> {lane_count}()`),

		// Dedup keys are taken in sorted order, so that two writers with one
		// write each cannot deadlock. The statement waits for a key that
		// another open transaction has taken. The database's clock chooses the
		// table. The statement also returns the position, counted from 1, of
		// every absorbed event. Only outbox has the trigger, so this statement
		// chooses the lane. Tables are locked in the order in which they
		// appear: outbox before delayed, as SetLanes locks them, or the two
		// would deadlock.
		insertWith: r(`WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
input AS MATERIALIZED (
  SELECT i.*, CASE WHEN i.delay > 0 THEN clock.now + i.delay * interval '1 microsecond'
                   WHEN i.available_at > clock.now THEN i.available_at END AS due_at
  FROM clock, ` + insertArrays + `, $19::timestamptz[], $20::bigint[]) WITH ORDINALITY
    AS i(` + insertColumns + `, available_at, delay, place)
), taken AS (
  INSERT INTO {dedup} (tenant_id, dedup_key, id)
  SELECT DISTINCT ON (tenant, key) coalesce(tenant_id, '') COLLATE "C" AS tenant, dedup_key COLLATE "C" AS key, id
  FROM input WHERE dedup_key IS NOT NULL ORDER BY tenant, key, place
  ON CONFLICT DO NOTHING RETURNING id
), kept AS MATERIALIZED (
  SELECT *, nextval('{outbox_seq}') AS seq FROM (
    SELECT * FROM input WHERE dedup_key IS NULL OR id IN (SELECT id FROM taken)
      -- An event is not its own duplicate: writing it twice must meet its unique id.
      OR EXISTS (SELECT FROM {dedup} d WHERE d.tenant_id = coalesce(input.tenant_id, '') AND d.dedup_key = input.dedup_key AND d.id = input.id)
    ORDER BY place
  ) AS ordered
), ready AS (
  INSERT INTO {outbox} (` + insertColumns + `, seq)
  SELECT ` + countedLane + `, ` + insertValues + `, seq FROM kept WHERE due_at IS NULL
), later AS (
  INSERT INTO {delayed} (` + insertColumns + `, seq, due_at)
  SELECT ` + countedLane + `, ` + insertValues + `, seq, due_at FROM kept WHERE due_at IS NOT NULL
)
SELECT place FROM input WHERE dedup_key IS NOT NULL AND id NOT IN (SELECT id FROM kept)
UNION ALL SELECT -{lane_count}()::bigint WHERE $21::integer <> {lane_count}()`),
		// Primary key of dedup.
		holders: r(`SELECT d.id, k.place FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k(tenant_id, dedup_key, place)
JOIN {dedup} d ON d.tenant_id = k.tenant_id AND d.dedup_key = k.dedup_key`),

		// Unique id of outbox, primary key of delayed.
		present: r(`SELECT id FROM {outbox} WHERE id = ANY($1::uuid[]) UNION ALL SELECT id FROM {delayed} WHERE id = ANY($1::uuid[])`),
		// A prepared transaction has no process. A prepared transaction that
		// has drawn from the sequence may contain any event.
		openTransactions: r(`SELECT clock_timestamp(), min(xact_start), EXISTS (SELECT FROM pg_locks WHERE pid IS NULL
 AND locktype = 'relation' AND relation = '{outbox_seq}'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
FROM pg_stat_activity
WHERE datname = current_database() AND usename = session_user AND pid <> pg_backend_pid() AND backend_type = 'client backend'`),
		found: r(`SELECT EXISTS (SELECT FROM {outbox} WHERE id = $1) OR EXISTS (SELECT FROM {delayed} WHERE id = $1)
 OR EXISTS (SELECT FROM {dead} WHERE id = $1) OR EXISTS (SELECT FROM {history} WHERE id = $1),
 coalesce((SELECT value FROM {setting} WHERE name = 'history_from'), '')`),

		drawn: r(`SELECT coalesce(pg_sequence_last_value('{outbox_seq}'::regclass), 0)` + readTimeline),
		// A transaction has two names once it has a transaction id. A prepared
		// transaction loses its virtual transaction id when the server
		// restarts.
		drawers: r(`WITH l AS MATERIALIZED (SELECT locktype, relation, database, mode, granted, virtualtransaction, transactionid FROM pg_locks),
d AS MATERIALIZED (
  SELECT virtualtransaction FROM l WHERE locktype = 'relation' AND relation = '{outbox_seq}'::regclass
    AND mode = 'RowExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT virtualtransaction` + readTimeline + ` FROM d
UNION ALL SELECT 'xid ' || l.transactionid::text` + readTimeline + ` FROM d JOIN l USING (virtualtransaction)
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
UNION ALL SELECT ''` + readTimeline),

		lockNodes: r(`LOCK TABLE {node} IN SHARE ROW EXCLUSIVE MODE`),
		live:      r(`SELECT EXISTS (SELECT FROM {node} WHERE id = $1 AND expires_at > clock_timestamp())`),

		join:    r(joinRelay),
		renew:   r(renewLease),
		acquire: r(acquireLanes),
		release: r(releaseLanes),
		leave:   r(leaveRelay),

		keepTimeline: r(keepTimeline),

		fetch: r(fetchRows(readyColumns)),
		sweep: r(sweepKeys),
		load:  r(loadRows(readyColumns)),
		due:   r(dueRows),

		fetchRaw: r(fetchRaw),

		holds:  r(holdingRows),
		follow: r(followAggregate(readyColumns)),
		urgent: r(urgentKeys),
		plain:  r(plainRows),

		settle: settleStatements(r),
		finish: r(finishDeliveries(heldLanes)), finishLast: r(finishDeliveries(allHeld)),

		stats: r(all), statsUpTo: r(upTo), members: r(readMembers),
		find: r(findEvent()),
		list: listStatements(r), recent: r(listRecent()), recentFloor: r(recentFloor),
		count: countStatements(r), deadBy: deadStatements(r, "true", recordColumns(store.Dead)),

		replay:  r(replayDead()),
		discard: r(discardDead),
		unblock: r(unblockRows),

		purge: map[store.State]string{
			store.Delivered: r(purgeHistory),
			store.Dead:      r(purgeDead),
		},
		purgeWritten:    r(purgePending),
		makeReady:       r(strings.ReplaceAll(readyDue, "{events}", eventColumns)),
		freeOrphans:     r(freeOrphans),
		forgetNodes:     r(forgetSilentNodes),
		days:            r(historyDays),
		forgetDay:       r(forgetUntil),
		anyLive:         r(anyLive),
		setLanes:        setLanesStatements(r),
		countLanes:      r(countLanes),
		causeStatements: newCauseStatements(r, "true", recordColumns(store.Dead)),
		noteAudit:       r(noteAudit), listAudit: r(listAudit), purgeAudit: r(purgeAudit),
		listRollups: r(listRollups), mergeRollups: r(mergeRollups), purgeRollups: r(purgeRollups),

		destinationStatements: newDestinationStatements(r),
		jobStatements:         newJobStatements(r),
		inboxStatements:       newInboxStatements(r),
		keyStatements:         newKeyStatements(r),
	}
}
