package mysqlstore

import (
	"strconv"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// queueStatements holds the SQL that reads and repairs the rows of a queue: of
// the outbox, or of the backlog of a destination. Comments name the indexes of
// the outbox; those of the backlogs have the same names.
type queueStatements struct {
	clock                 string
	fetchPage, fetch      string
	load, sweepOn, sweep  string
	follow, followKeys    string
	dueClock, fewDelayed  string
	dueKeys, due          string
	holds                 string
	urgentKeys            string
	plainOn, plain        string
	find                  string
	count, list           [4]string
	recent, recentFloor   string
	lockDead, replay      string
	lockDeadIDs, dropDead string
	lockHolding, unblock  [2]string // dead, delayed
	purgeDead             string
	causeless, setCause   string
	countCauses, ofCause  string
}

// layout is how the tables of a queue differ from the outbox, its delayed
// events and its dead letters. The zero layout is that of the outbox.
type layout struct {
	// tables maps the names in braces to the names of the tables of the
	// backlogs; it is nil for the outbox.
	tables map[string]string
	// number is the number of the destination.
	number int
}

func (l layout) isOutbox() bool { return l.tables == nil }

// backlogLayout is the layout of the backlog of a destination. All destinations
// share three tables; the lanes of each begin at a base of its own.
func backlogLayout(number int) layout {
	return layout{number: number, tables: map[string]string{"outbox": "backlog", "delayed": "backlog_delayed", "dead": "backlog_dead"}}
}

// base is the number that is added to the lanes of the rows.
func (l layout) base() int { return sqlstore.BaseLane(l.number) }

// lanes is the condition that a column has a lane of this queue.
func (l layout) lanes(column string) string {
	return column + ` BETWEEN ` + strconv.Itoa(l.base()) + ` AND ` + strconv.Itoa(l.base()+sqlstore.MaxLanes-1)
}

// with returns text for a backlog, and nothing for the outbox.
func (l layout) with(text string) string {
	if l.isOutbox() {
		return ""
	}
	return text
}

// tried lists the columns of a ready row after its due time: attempts, replay,
// holds, last error. A row of a backlog may have been tried before, and has a
// column that marks a final failure.
func (l layout) tried() string {
	if l.isOutbox() {
		return `0, 0, 0, NULL`
	}
	return `o.attempts, o.replay, 0, CAST(o.last_error AS BINARY), o.final`
}

// place describes how the rows of a state are stored.
type place struct {
	table string
	// more lists the columns after the event's own: due time, attempts, replay,
	// holds, last error, end time. In a backlog there is one more: final.
	more string
	// keys are the columns that identify a row; join compares them.
	keys, join string
	// index is the index in the order of seq; without one, the table is scanned
	// and only the keys are sorted.
	index string
	// own is the condition that selects the rows of the queue.
	own string
	// attempts and holds are the columns that filters use.
	attempts, holds string
	// at, failure and cause are the time, the last error and the cause, for
	// filters.
	at, failure, cause string
}

const (
	byKey    = `o.lane = k.lane AND o.seq = k.seq`
	byID     = `o.id = k.id`
	byNumber = `o.number = k.number`
	tried    = `o.attempts, o.replay, o.holds, CAST(o.last_error AS BINARY), `
)

var places = [...]place{
	store.Ready: {"{outbox}", micros + `o.available_at), 0, 0, 0, NULL, NULL`, `lane, seq`, byKey, `FORCE INDEX (seq)`, ``, `0`, `0`, `created_at`, `NULL`, `NULL`},
	store.Delayed: {
		"{delayed}", micros + `o.due_at), ` + tried + `NULL`, `id`, byID, ``, ``, `attempts`, `holds`, `created_at`, `last_error`, `NULL`,
	},
	store.Dead: {
		"{dead}", `NULL, ` + tried + micros + `o.died_at)`, `id`, byID, `FORCE INDEX (listed)`, ``, `attempts`, `holds`, `died_at`,
		`last_error`, `cause`,
	},
	store.Delivered: {
		"{history}", `NULL, o.attempts, o.replay, 0, NULL, ` + micros + `o.done_at)`, `number`, byNumber, ``, ``, `attempts`, `0`, `done_at`, `NULL`, `NULL`,
	},
}

// places returns the places of the queue's rows. A backlog has no delivered
// events. Its index seq and the indexes that list dead letters begin with the
// number of the destination, and other indexes with the lane.
func (l layout) places() []place {
	if l.isOutbox() {
		return places[:]
	}
	own := make([]place, store.Dead+1)
	copy(own, places[:])
	for state := range own {
		own[state].more += `, 0`
		own[state].own = l.lanes(`lane`) + ` AND `
		if store.State(state) != store.Ready {
			own[state].keys, own[state].join = `lane, id`, `o.lane = k.lane AND o.id = k.id`
		}
	}
	own[store.Ready].more = micros + `o.available_at), o.attempts, o.replay, 0, CAST(o.last_error AS BINARY), NULL, o.final`
	own[store.Ready].own, own[store.Ready].attempts = l.destination()+` AND `, `attempts`
	own[store.Ready].failure = `last_error`
	own[store.Dead].own = own[store.Ready].own
	return own
}

// destination is the condition that a row is one of the destination.
func (l layout) destination() string { return `destination = ` + strconv.Itoa(l.number) }

func newQueueStatements(cfg Config, l layout) *queueStatements {
	r := cfg.replacerOf(l).Replace
	// The rows of the queue, where a statement finds rows by id.
	own, final := l.with(` AND `+l.lanes(`o.lane`)), l.with(`, 0`)
	clock := r(clockRow + final)
	ready := readColumns + `, ` + micros + `o.available_at), ` + l.tried()
	s := &queueStatements{
		clock: clock,
		// Primary key of outbox (lane, seq), once per lane or once for all
		// lanes.
		fetchPage: r(`(SELECT ` + ready + `
FROM {outbox} AS o FORCE INDEX (PRIMARY) WHERE {where} ORDER BY lane, seq LIMIT {limit})`),
		fetch: clock + ` UNION ALL {pages}`,
		// The keys come from a filtered scan that does not read payloads; the
		// primary key then finds the whole rows.
		follow: r(clock + ` UNION ALL SELECT ` + ready + `
FROM ({keys}) AS k STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),
		load: r(clock + ` UNION ALL SELECT ` + ready + `
FROM ` + keyTable + ` STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`),
		// Reads of keys begin with a row that has the standing of the server as
		// its tenant, and the lane -1 or no aggregate.
		sweepOn: r(`SELECT -1 AS lane, 0 AS seq, NULL AS id, ` + standingColumn + ` AS tenant_id, NULL AS aggregate_type, NULL AS aggregate_id UNION ALL `),
		sweep:   r(`(SELECT lane, seq, id, ` + aggregateColumns + ` FROM {outbox} FORCE INDEX (PRIMARY) WHERE {where} ORDER BY lane, seq LIMIT {limit})`),
		// Primary key of outbox (lane, seq); rows of other aggregates are
		// skipped.
		followKeys: r(`SELECT lane, seq FROM {outbox} FORCE INDEX (PRIMARY) WHERE {where} AND aggregate_id = ? AND ` + shownType + ` = ?
 AND COALESCE(tenant_id, '') = ? ORDER BY seq LIMIT {limit}`),
		urgentKeys: r(l.urgentKeys()),
		// Primary key of outbox (lane, seq).
		plainOn: r(`SELECT ` + standingColumn + ` AS tenant_id, NULL AS aggregate_type, NULL AS aggregate_id, 0 AS seq UNION ALL `),
		plain: r(`SELECT ` + aggregateColumns + `, MIN(seq) FROM {outbox} FORCE INDEX (PRIMARY)
WHERE {where} AND priority <= 0 AND aggregate_id IN ({ids}) GROUP BY ` + aggregateColumns),
		// Index due of delayed (lane, due_at, seq), which also contains the id.
		// The first row that is not due gives the time of the next read.
		dueClock: r(`SELECT ` + micros + `UTC_TIMESTAMP(6)), 0, NULL, 2, ` + standingColumn + ` UNION ALL `),
		fewDelayed: r(`(SELECT ` + micros + `due_at), seq, id, due_at <= UTC_TIMESTAMP(6), NULL FROM {delayed} FORCE INDEX (due)
 WHERE lane IN ({numbers}) LIMIT ` + strconv.Itoa(fewDelayed+1) + `)`),
		dueKeys: r(`(SELECT ` + micros + `due_at), seq, id, 1, NULL FROM {delayed} FORCE INDEX (due)
 WHERE lane = {number} AND due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT {limit})
UNION ALL (SELECT ` + micros + `due_at), seq, id, 0, NULL FROM {delayed} FORCE INDEX (due)
 WHERE lane = {number} AND due_at > UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT 1)`),
		// Primary key of delayed.
		due: r(clock + ` UNION ALL SELECT ` + readColumns + `, ` + micros + `o.due_at), o.attempts, o.replay, o.holds, CAST(o.last_error AS BINARY)` + final + `
FROM ` + idTable + `
STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own + ` WHERE o.due_at <= UTC_TIMESTAMP(6)`),

		// Index holds (lane, holds) of each table.
		holds: r(`SELECT -1 AS lane, 0 AS seq, NULL AS id, ` + standingColumn + ` AS tenant_id, NULL AS aggregate_type, NULL AS aggregate_id, 0
UNION ALL SELECT lane, seq, id, ` + aggregateColumns + `, 0 FROM {delayed} FORCE INDEX (holds) WHERE lane IN ({numbers}) AND holds = 1
UNION ALL SELECT lane, seq, id, ` + aggregateColumns + `, 1 FROM {dead} FORCE INDEX (holds) WHERE lane IN ({numbers}) AND holds = 1`),

		// Primary key of dead, or delayed, up to unblock.
		lockDead: r(`SELECT o.id, o.seq, COALESCE(o.tenant_id, ''), COALESCE(o.dedup_key, '') FROM ` + idTable + `
STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own + ` FOR UPDATE /*!80001 OF o */`),
		// A replayed ordered event holds its aggregate, so that it keeps its
		// place before later events.
		replay: r(`INSERT INTO {delayed} (lane, seq, {events}, created_at, due_at, attempts, replay, holds, last_error)
SELECT o.lane, o.seq, {o.events}, o.created_at, TIMESTAMP'{now}', 0, o.replay + 1, COALESCE(o.aggregate_id, '') <> '', o.last_error
FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own),
		lockDeadIDs: r(`SELECT o.id, ` + micros + `o.created_at) FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` +
			own + ` FOR UPDATE /*!80001 OF o */`),
		dropDead: r(`DELETE o FROM ` + idTable + ` STRAIGHT_JOIN {dead} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own),
		// Index died_at of dead.
		purgeDead: r(`DELETE FROM {dead} WHERE ` + l.with(l.destination()+` AND `) + `died_at < TIMESTAMP'{before}' ORDER BY died_at LIMIT {limit}`),
	}
	for i, table := range []string{"{dead}", "{delayed}"} {
		s.lockHolding[i] = r(`SELECT o.id, ` + micros + `o.created_at) FROM ` + idTable + ` STRAIGHT_JOIN ` + table + ` AS o FORCE INDEX (PRIMARY)
ON o.id = UNHEX(k.id)` + own + ` WHERE o.holds = 1 FOR UPDATE /*!80001 OF o */`)
		s.unblock[i] = r(`UPDATE ` + idTable + ` STRAIGHT_JOIN ` + table + ` AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id)` + own + ` SET o.holds = 0`)
	}
	s.inspect(r, l.places(), own)
	s.causes(r, l, own)
	return s
}

// narrowed returns the index of the rows in a state that match a filter; ""
// if there is none. Indexes type (type, seq), aggregate (aggregate_id, seq),
// cause (cause, seq) and died_at of dead; those of backlog_dead begin with the
// destination.
func narrowed(state store.State, f store.Filter) string {
	switch {
	case state != store.Dead:
	case f.AggregateID != "":
		return `FORCE INDEX (aggregate)`
	case f.Type != "":
		return `FORCE INDEX (type)`
	case f.Cause != "":
		return `FORCE INDEX (cause)`
	case !f.Since.IsZero():
		return `FORCE INDEX (died_at)`
	}
	return ""
}

// inspect fills in the statements that search the rows of each state.
func (s *queueStatements) inspect(r func(string) string, places []place, own string) {
	for state, p := range places {
		s.count[state] = r(`SELECT COUNT(*) FROM ` + p.table + ` {index} WHERE ` + p.own + `{fits}`)
		whole := `SELECT ` + strconv.Itoa(state) + ` AS state, ` + readColumns + `, ` + p.more
		s.list[state] = r(whole + ` FROM (SELECT ` + p.keys + ` FROM ` + p.table + ` {index} WHERE ` + p.own + `seq > {after} AND {fits}
 ORDER BY seq LIMIT {limit}) AS k STRAIGHT_JOIN ` + p.table + ` AS o FORCE INDEX (PRIMARY) ON ` + p.join)
		if store.State(state) == store.Delivered { // index id of history
			s.recent = r(whole + ` FROM (SELECT ` + p.keys + ` FROM ` + p.table + ` FORCE INDEX (id) WHERE id < UNHEX('{before}') AND id >= UNHEX('{floor}') AND {fits}
 ORDER BY id DESC LIMIT {limit}) AS k STRAIGHT_JOIN ` + p.table + ` AS o FORCE INDEX (PRIMARY) ON ` + p.join)
			s.recentFloor = r(`SELECT id FROM ` + p.table + ` FORCE INDEX (id) WHERE id < UNHEX('{before}') ORDER BY id DESC LIMIT 1 OFFSET {skip}`)
		}
		if state > 0 {
			s.find += "\nUNION ALL "
		}
		// Unique id of outbox, primary keys of delayed and dead, index id of
		// history.
		s.find += r(whole + ` FROM ` + p.table + ` AS o WHERE o.id = UNHEX('{id}')` + own)
	}
}

// urgentKeys reads the first rows with a priority, and in a row without an id
// the seq up to which it looked, and the standing of the server. Index seq of
// outbox (seq, priority), which also contains the lane; the primary key finds
// the other columns.
//
// The seqs of a backlog have gaps of any size: instead of the highest seq, the
// row has the seq that would be the highest without gaps. The index seq of
// backlog is (destination, seq, priority, attempts).
func (l layout) urgentKeys() string {
	highest, from, own := `COALESCE(MAX(seq), 0)`, ``, ``
	if !l.isOutbox() {
		highest, own = `{first} + COUNT(*)`, l.destination()+` AND `
		from = ` FORCE INDEX (seq) WHERE ` + own + `seq > {first}`
	}
	return `SELECT -1 AS lane, ` + highest + ` AS seq, NULL AS id, ` + standingColumn + ` AS tenant_id, NULL AS aggregate_type, NULL AS aggregate_id FROM {outbox}` + from + `
UNION ALL SELECT o.lane, o.seq, o.id, o.tenant_id, o.aggregate_type, o.aggregate_id
FROM (SELECT lane, seq FROM {outbox} FORCE INDEX (seq) WHERE ` + own + `seq > {first} AND priority > 0 AND lane IN ({numbers}) ORDER BY seq LIMIT {limit}) AS k
STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq`
}
