package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// settleKind says which parts a settlement's statement has. Missing parts cost
// nothing.
type settleKind struct{ done, late, history, retry, dead bool }

// settleStatements are the statements of all kinds. Each is one autocommit
// statement: a client that stops between a lock and its commit would block the
// takeover for as long as its connection lives.
//
// The fence is a lock, not a read. With EXISTS(epoch) instead, a statement
// whose snapshot is older than a takeover would still move rows after the
// takeover. FOR SHARE makes the takeover's FOR UPDATE wait. If the settlement
// waits for a takeover instead, the server checks the row again, and its epoch
// no longer matches. Rows are found by id: unique id of outbox, primary key of
// delayed.
func settleStatements(r func(string) string) map[settleKind]string {
	out := make(map[settleKind]string)
	for i := range 32 {
		k := settleKind{done: i&1 != 0, history: i&2 != 0, retry: i&4 != 0, dead: i&8 != 0, late: i&16 != 0}
		out[k] = r(k.statement())
	}
	return out
}

const settleFence = `WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
)`

// held is the condition on the lanes of the fence, as an array: comparing with
// a few numbers is cheaper per row than a join. The lanes are compared as
// integers, which no index has, so that rows are found by id only.
const held = `lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))`

// $5: ids of done events that are ready. The statement carries only the columns
// that the destination of the rows needs.
const settleDone = `, done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND ` + held + `
  RETURNING {kept}, 0 AS attempts, 0 AS replay
)`

// $6: ids of done events that were delayed.
const settleLate = `, done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND ` + held + `
  RETURNING {kept}, attempts, replay
)`

const settleKeys = `, done_key AS (
  DELETE FROM {dedup} d USING ({gone}) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
)`

const settleHistory = `, kept AS (
  INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM ({gone}) AS g
)`

// $7: ids, $8: attempts, $9: delays in microseconds, $10: holds, $11: errors,
// $12: replays of retried events. A row that was replayed since it was read
// belongs to another delivery.
const settleRetry = `, retry AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[], $12::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND ` + held + `
  RETURNING lane, seq, {events}, created_at
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($7::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.` + held + ` RETURNING d.lane, d.id
)`

// $13: ids, $14: attempts, $15: holds, $16: errors, $17: replays of dead
// events.
const settleDead = `, verdict AS MATERIALIZED (
  SELECT * FROM unnest($13::uuid[], $14::integer[], $15::boolean[], $16::text[], $17::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($13::uuid[]) AND ` + held + `
  RETURNING lane, seq, {events}, created_at, 0 AS replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($13::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND ` + held + `
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
), dead_key AS (
  DELETE FROM {dedup} d USING buried b
  WHERE b.dedup_key IS NOT NULL AND d.tenant_id = coalesce(b.tenant_id, '') AND d.dedup_key = b.dedup_key AND d.id = b.id
)`

func (k settleKind) statement() string {
	var b strings.Builder
	b.WriteString(settleFence)
	var gone, moved []string
	if k.done {
		b.WriteString(settleDone)
		gone = append(gone, "done")
	}
	if k.late {
		b.WriteString(settleLate)
		gone = append(gone, "done_late")
	}
	moved = append(moved, gone...)
	if len(gone) > 0 {
		b.WriteString(settleKeys)
		if k.history {
			b.WriteString(settleHistory)
		}
	}
	if k.retry {
		b.WriteString(settleRetry)
		moved = append(moved, "late", "again")
	}
	if k.dead {
		b.WriteString(settleDead)
		moved = append(moved, "buried")
	}
	b.WriteString(k.answer(moved))
	kept := "lane, id, tenant_id, dedup_key"
	if k.history {
		kept = "lane, seq, {events}, created_at"
	}
	return strings.NewReplacer("{events}", eventColumns).Replace(strings.NewReplacer(
		"{kept}", kept, "{gone}", "SELECT * FROM "+strings.Join(gone, " UNION ALL SELECT * FROM "),
	).Replace(renumber(b.String(), k)))
}

// answer returns the final SELECT, which has one row: the lanes that are held,
// the number of moved events, and, only if not all were moved, their ids. The
// server does not return what the client already knows: returning five hundred
// ids took as long as deleting their rows.
func (k settleKind) answer(moved []string) string {
	const held = "\nSELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), '')"
	if len(moved) == 0 {
		return held + ", 0, ''"
	}
	return held + `, m.n, CASE WHEN m.n < $18::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $18::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM ` + strings.Join(moved, " UNION ALL SELECT id FROM ") + `
) AS all_of_them) AS m`
}

// renumber closes the gaps that missing parts leave in the parameter numbers.
func renumber(statement string, k settleKind) string {
	present := []bool{
		true, true, true, true, k.done, k.late, k.retry, k.retry, k.retry, k.retry, k.retry, k.retry,
		k.dead, k.dead, k.dead, k.dead, k.dead, k.done || k.late || k.retry || k.dead,
	}
	var pairs []string
	next := len(slices.DeleteFunc(slices.Clone(present), func(b bool) bool { return !b }))
	// Replace from the largest number, so that $1 does not match in $18.
	for i := len(present) - 1; i >= 0; i-- {
		if present[i] {
			pairs = append(pairs, "$"+strconv.Itoa(i+1), "$"+strconv.Itoa(next))
			next--
		}
	}
	return strings.NewReplacer(pairs...).Replace(statement)
}

// Settle implements [driver.Settler]. It settles done events in the table from
// which the relay read them. If some events are missing there, a second
// statement behind the same fence settles them in the other table.
func (c *core) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if len(s.Done) > 0 && !s.History {
		if err := c.noteGap(ctx); err != nil {
			return driver.Settled{}, c.explain(err)
		}
	}
	var ready, late []waybill.ID
	for _, r := range s.Done {
		if r.Late {
			late = append(late, r.ID)
		} else {
			ready = append(ready, r.ID)
		}
	}
	out, err := c.settle(ctx, s, ready, late)
	if err != nil || len(out.Moved) >= len(s.Done)+len(s.Retry)+len(s.Dead) || len(out.Held) == 0 {
		return out, err
	}
	moved := make(map[waybill.ID]bool, len(out.Moved))
	for _, id := range out.Moved {
		moved[id] = true
	}
	gone := func(id waybill.ID) bool { return moved[id] }
	ready, late = slices.DeleteFunc(ready, gone), slices.DeleteFunc(late, gone)
	if len(ready)+len(late) == 0 {
		return out, nil
	}
	more, err := c.settle(ctx, driver.Settlement{Leases: s.Leases, History: s.History}, late, ready)
	if err != nil {
		return driver.Settled{}, err
	}
	out.Held = slices.DeleteFunc(out.Held, func(lane int) bool { return !slices.Contains(more.Held, lane) })
	out.Moved = append(out.Moved, more.Moved...)
	return out, nil
}

// settle runs one statement. ready and late are the done events in the outbox
// and in the delayed table.
func (c *core) settle(ctx context.Context, s driver.Settlement, ready, late []waybill.ID) (driver.Settled, error) {
	k := settleKind{
		done: len(ready) > 0, late: len(late) > 0, history: s.History && len(ready)+len(late) > 0, retry: len(s.Retry) > 0, dead: len(s.Dead) > 0,
	}
	lanes, epochs, tokens := fences(s.Leases)
	// Losing such a commit only causes a redelivery. A dead letter that came
	// back would be delivered after its successors.
	hasty := !k.dead && !s.Durable
	args := []any{hasty, c.db.int16s(lanes), c.db.int64s(epochs), c.db.ids(tokens)}
	if k.done {
		args = append(args, c.db.ids(ready))
	}
	if k.late {
		args = append(args, c.db.ids(late))
	}
	if k.retry {
		args = append(args, c.results(s.Retry, true)...)
	}
	if k.dead {
		args = append(args, c.results(s.Dead, false)...)
	}
	all := len(ready) + len(late) + len(s.Retry) + len(s.Dead)
	if all > 0 {
		args = append(args, int64(all))
	}
	var held, ids string
	var n int
	rows, err := c.db.query(ctx, c.sql.settle[k], args...)
	if err := collect(rows, err, func() error { return nil }, &held, &n, &ids); err != nil {
		return driver.Settled{}, c.explain(err)
	}
	return settledOf(held, n, ids, all, slices.Concat(ready, late, column(s.Retry, resultID), column(s.Dead, resultID)))
}

func resultID(r driver.Result) waybill.ID { return r.ID }

// settledOf reads the result of a settlement.
func settledOf(held string, n int, ids string, all int, asked []waybill.ID) (driver.Settled, error) {
	var out driver.Settled
	for lane := range strings.SplitSeq(held, ",") {
		if lane == "" {
			continue
		}
		number, err := strconv.Atoi(lane)
		if err != nil {
			return out, fmt.Errorf("pgstore: settle: lane %q: %w", lane, err)
		}
		out.Held = append(out.Held, number)
	}
	slices.Sort(out.Held)
	if n >= all {
		out.Moved = asked
		return out, nil
	}
	for text := range strings.SplitSeq(ids, ",") {
		if text == "" {
			continue
		}
		var id scanText
		if err := id.Scan(text); err != nil {
			return out, fmt.Errorf("pgstore: settle: event id %q: %w", text, err)
		}
		out.Moved = append(out.Moved, waybill.ID(id))
	}
	return out, nil
}

// results splits results into columns: id, attempts, delay if asked for, holds,
// error and replay.
func (c *core) results(rs []driver.Result, delays bool) []any {
	out := []any{
		c.db.ids(column(rs, func(r driver.Result) waybill.ID { return r.ID })),
		c.db.int32s(column(rs, func(r driver.Result) int32 { return int32(r.Attempts) })),
	}
	if delays {
		out = append(out, c.db.int64s(column(rs, func(r driver.Result) int64 { return r.Delay.Microseconds() })))
	}
	return append(out,
		c.db.bools(column(rs, func(r driver.Result) bool { return r.Holds })),
		c.db.texts(column(rs, func(r driver.Result) string { return driver.CutError(r.Error) })),
		c.db.int32s(column(rs, func(r driver.Result) int32 { return int32(r.Replay) })),
	)
}

func column[E any](rs []driver.Result, field func(driver.Result) E) []E {
	out := make([]E, len(rs))
	for i, r := range rs {
		out[i] = field(r)
	}
	return out
}
