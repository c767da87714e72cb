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
	diverted := slices.DeleteFunc(slices.Clone(s.Divert), func(d driver.Diversion) bool { return moved[d.ID] })
	more, err := c.settle(ctx, driver.Settlement{Leases: s.Leases, History: s.History, Divert: diverted, Durable: s.Durable}, late, ready)
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
		divert: len(s.Divert) > 0 && len(ready)+len(late) > 0,
	}
	lanes, epochs, tokens := fences(s.Leases)
	// Losing such a commit only causes a redelivery. A dead letter that came
	// back would be delivered after its successors.
	asyncCommit := !k.dead && !s.Durable
	args := []any{asyncCommit, c.db.int16s(lanes), c.db.int64s(epochs), c.db.ids(tokens)}
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
	if k.divert {
		args = append(args, c.diversions(s.Divert)...)
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

// diversions splits diversions into columns: id, destination, attempts, delay,
// final and error.
func (c *core) diversions(ds []driver.Diversion) []any {
	return []any{
		c.db.ids(column(ds, func(d driver.Diversion) waybill.ID { return d.ID })),
		c.db.int32s(column(ds, func(d driver.Diversion) int32 { return int32(d.Destination) })),
		c.db.int32s(column(ds, func(d driver.Diversion) int32 { return int32(d.Attempts) })),
		c.db.int64s(column(ds, func(d driver.Diversion) int64 { return d.Delay.Microseconds() })),
		c.db.bools(column(ds, func(d driver.Diversion) bool { return d.Final })),
		c.db.texts(column(ds, func(d driver.Diversion) string { return driver.CutError(d.Error) })),
	}
}

func column[R, E any](rs []R, field func(R) E) []E {
	out := make([]E, len(rs))
	for i, r := range rs {
		out[i] = field(r)
	}
	return out
}
