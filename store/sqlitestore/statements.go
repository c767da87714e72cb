package sqlitestore

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/waybillhq/waybill/internal/eventrow"
)

// sizes are the numbers of rows or ids that a statement takes, largest first.
// Preparing a statement costs more than running it (for a single insert, about
// a third of the transaction), so a few fixed sizes stay prepared instead of
// one for every number. Ten rows in a statement are nearly as fast as five
// hundred.
var sizes = []int{64, 8, 1}

// statement is one SQL text, and its prepared form once it exists.
//
// Preparing needs a connection of the pool. Inside a transaction the pool may
// have none left (SetMaxOpenConns(1) is common with SQLite), so a statement
// that is not prepared there is run from its text and marked; the next Begin
// prepares it.
type statement struct {
	text     string
	prepared atomic.Pointer[sql.Stmt]
	wanted   atomic.Bool
}

// statements are all statements of a store, named by their purpose.
type statements struct {
	all []*statement

	// The state of the file.
	lanes, historyFrom, keepNoHistory *statement
	// Transactions.
	probe, lock *statement
	// Writing; the lists have one statement for each of sizes.
	insert, insertTimed []*statement
	deferRows, unready  *statement
	takeKey, keyHolder  *statement
	found               *statement
	// Reading, settling, inspecting and repairing the outbox.
	queueStatements
	// Lanes.
	otherRelay, beat, forgetNodes, nodes, lanesState *statement
	live, freeLane, acquire, release                 *statement
	leave, leaveLanes, held                          *statement
	// Settling.
	keepReady, keepDelayed     []*statement
	divertReady, divertDelayed []*statement
	redate                     []*statement
	freeKey                    *statement
	// Maintenance.
	anyLive, setHistoryFrom           *statement
	purgeHistory, purgeDead           *statement
	purgeReady, makeReady, raiseEpoch *statement
	dropMoved                         []*statement
	freeOrphans                       *statement
	destinationStatements
	inboxStatements
	keyStatements
	jobStatements
	sinkStatements
	auditStatements
	rollupStatements
}

// eventColumns are the columns of an event, rowColumns the columns that a row
// of every table has, and aggregateColumns the columns of an aggregate.
var (
	eventColumns     = strings.Join(eventrow.Columns(), ", ")
	rowColumns       = "lane, seq, " + eventColumns + ", created_at"
	aggregateColumns = "tenant_id, aggregate_type, aggregate_id"
)

// makers returns functions that make statements and append them to all. one
// makes a single statement. each makes one for every size; LIST stands for that
// many copies of item.
func makers(names *strings.Replacer, all *[]*statement) (one func(text string) *statement, each func(text, item string) []*statement) {
	one = func(text string) *statement {
		st := &statement{text: names.Replace(text)}
		*all = append(*all, st)
		return st
	}
	each = func(text, item string) []*statement {
		var list []*statement
		for _, n := range sizes {
			list = append(list, one(strings.Replace(text, "LIST", strings.Repeat(item+", ", n-1)+item, 1)))
		}
		return list
	}
	return one, each
}

func newStatements(names *strings.Replacer) *statements {
	s := &statements{}
	one, each := makers(names, &s.all)
	columns := len(eventrow.Columns())
	row := func(more int) string { return "(?1" + strings.Repeat(", ?", columns+more) + ")" }

	s.sinkStatements.fill(one)
	s.auditStatements.fill(one)
	s.rollupStatements.fill(one)
	s.lanes = one(`SELECT value FROM {setting} WHERE name = 'lanes'`)
	s.historyFrom = one(`SELECT value FROM {setting} WHERE name = 'history_from'`)
	s.keepNoHistory = one(`INSERT INTO {setting} (name, value) VALUES ('history_from', 'never')
ON CONFLICT (name) DO UPDATE SET value = 'never' WHERE value <> 'never'`)

	// BEGIN fails exactly when a transaction is open, which proves that this
	// transaction still is.
	s.probe = one(`BEGIN`)
	// A write that changes no row takes the write lock and dirties no page.
	s.lock = one(`DELETE FROM {setting} WHERE 0`)

	s.insert = each(`INSERT INTO {outbox} (created_at, `+eventColumns+`) VALUES LIST`, row(0))
	s.insertTimed = each(`INSERT INTO {outbox} (created_at, `+eventColumns+`, available_at) VALUES LIST`, row(1))
	// Inserted rows that are not due move to delayed; they have drawn their seq
	// from the same counter. Primary key of outbox.
	s.deferRows = one(`INSERT INTO {delayed} (` + rowColumns + `, due_at)
SELECT ` + rowColumns + `, available_at FROM {outbox} WHERE seq BETWEEN ?1 AND ?2 AND available_at > ?3 ORDER BY seq`)
	s.unready = one(`DELETE FROM {outbox} WHERE seq BETWEEN ?1 AND ?2 AND available_at > ?3`)
	// The statement does not use OR IGNORE, which would hide every other error
	// too. Primary key of dedup.
	s.takeKey = one(`INSERT INTO {dedup} (tenant_id, dedup_key, id) VALUES (?, ?, ?)
ON CONFLICT (tenant_id, dedup_key) DO NOTHING`)
	s.keyHolder = one(`SELECT id FROM {dedup} WHERE tenant_id = ? AND dedup_key = ?`)
	// Unique id or primary key of each table; history_id_idx.
	s.found = one(`SELECT EXISTS (SELECT 1 FROM {outbox} WHERE id = ?1) OR EXISTS (SELECT 1 FROM {delayed} WHERE id = ?1)
 OR EXISTS (SELECT 1 FROM {dead} WHERE id = ?1) OR EXISTS (SELECT 1 FROM {history} WHERE id = ?1)`)

	s.laneStatements(one)
	s.queueStatements.fill(one, each, shapeOfOutbox)
	s.settleStatements(one, each)
	s.maintainStatements(one, each)
	s.destinationStatements.fill(one)
	s.recordStatements(one, each)
	s.keysStatements(one)
	s.jobsStatements(one)
	return s
}

func (s *statements) laneStatements(one func(string) *statement) {
	s.otherRelay = one(`SELECT relay FROM {node} WHERE relay <> ? AND id <> ? AND expires_at > ? LIMIT 1`)
	s.beat = one(`INSERT INTO {node} (id, relay, expires_at, report) VALUES (?, ?, ?, nullif(?, ''))
ON CONFLICT (id) DO UPDATE SET relay = excluded.relay, expires_at = excluded.expires_at, report = excluded.report`)
	s.forgetNodes = one(`DELETE FROM {node} WHERE expires_at < ?`)
	s.nodes = one(`SELECT id, relay, expires_at, coalesce(report, '') FROM {node} WHERE expires_at > ? ORDER BY id`)
	s.lanesState = one(`SELECT l.lane, l.owner, n.id IS NOT NULL, l.epoch FROM {lane} l
LEFT JOIN {node} n ON n.id = l.owner AND n.expires_at > ? ORDER BY l.lane`)
	s.live = one(`SELECT EXISTS (SELECT 1 FROM {node} WHERE id = ? AND expires_at > ?)`)
	s.freeLane = one(`SELECT epoch, dirty OR owner IS NOT NULL, in_flight FROM {lane} WHERE lane = ?
 AND NOT EXISTS (SELECT 1 FROM {node} n WHERE n.id = owner AND n.expires_at > ?)`)
	s.acquire = one(`UPDATE {lane} SET owner = ?, epoch = ?, token = ?, in_flight = ?, dirty = 0 WHERE lane = ?`)
	s.release = one(`UPDATE {lane} SET owner = NULL, token = NULL, dirty = ?
WHERE lane = ? AND epoch = ? AND token = ? AND owner IS NOT NULL`)
	s.leave = one(`DELETE FROM {node} WHERE id = ?`)
	s.leaveLanes = one(`UPDATE {lane} SET owner = NULL, token = NULL, dirty = 1 WHERE owner = ?`)
	s.held = one(`SELECT EXISTS (SELECT 1 FROM {lane} WHERE lane = ? AND epoch = ? AND token = ? AND owner IS NOT NULL)`)
}

func (s *statements) settleStatements(one func(string) *statement, each func(text, item string) []*statement) {
	// All of these statements find rows by the unique id of outbox or the
	// primary key of delayed.
	s.keepReady = each(`INSERT INTO {history} (`+rowColumns+`, attempts, replay, done_at)
SELECT `+rowColumns+`, 0, 0, ?1 FROM {outbox} WHERE id IN (LIST)`, "?")
	s.keepDelayed = each(`INSERT INTO {history} (`+rowColumns+`, attempts, replay, done_at)
SELECT `+rowColumns+`, attempts, replay, ?1 FROM {delayed} WHERE id IN (LIST)`, "?")
	s.divertReady = each(divert("0", "{outbox}"), diversionItem)
	s.divertDelayed = each(divert("replay", "{delayed}"), diversionItem)
	// history_id_idx.
	s.redate = each(`UPDATE {history} SET done_at = ?1 WHERE id IN (LIST)`, "?")
	// Primary key of dedup.
	s.freeKey = one(`DELETE FROM {dedup} WHERE tenant_id = ? AND dedup_key = ? AND id = ?`)
}

// prepare prepares a statement. It needs a connection of the pool: never call
// it while holding one.
func (s *backend) prepare(ctx context.Context, st *statement) (*sql.Stmt, error) {
	s.preparing.Lock()
	defer s.preparing.Unlock()
	if p := st.prepared.Load(); p != nil {
		return p, nil
	}
	p, err := s.db.PrepareContext(ctx, st.text) //nolint:sqlclosecheck // Close does it
	if err != nil {
		return nil, s.explain(err)
	}
	st.prepared.Store(p)
	return p, nil
}

// prepareWanted prepares the statements that transactions have marked. A
// statement that cannot be prepared, because its table is of a migration that
// is missing, fails where it is used and not here.
func (s *backend) prepareWanted(ctx context.Context) error {
	if !s.wanted.Swap(false) {
		return nil
	}
	for _, st := range s.statements() {
		if !st.wanted.Load() || st.prepared.Load() != nil {
			continue
		}
		if _, err := s.prepare(ctx, st); err != nil { //nolint:sqlclosecheck // Close does it
			if ctx.Err() != nil {
				s.wanted.Store(true)
				return err
			}
			st.wanted.Store(false)
		}
	}
	return nil
}

// query runs a statement outside any transaction.
func (s *backend) query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error) {
	p := st.prepared.Load() //nolint:sqlclosecheck // Close does it
	if p == nil {
		var err error
		if p, err = s.prepare(ctx, st); err != nil {
			return nil, err
		}
	}
	return p.QueryContext(ctx, args...)
}

// pick returns the index in sizes of the statement for the next chunk of n
// rows, and the number of rows that it takes: as many as fit, without padding.
func pick(n int) (index, size int) {
	index = slices.IndexFunc(sizes, func(size int) bool { return size <= n })
	return index, sizes[index]
}

// lists calls fn with chunks of ids for statements that take a list, in which
// order and repetitions do not matter: the last chunk is padded by repeating
// its last id.
func lists[E any](items []E, arg func(E) any, fn func(index int, args []any) error) error {
	for len(items) > 0 {
		index := 0
		for index+1 < len(sizes) && 2*sizes[index+1] >= len(items) {
			index++
		}
		n := min(sizes[index], len(items))
		args := make([]any, sizes[index])
		for i := range args {
			args[i] = arg(items[min(i, n-1)])
		}
		if err := fn(index, args); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}
