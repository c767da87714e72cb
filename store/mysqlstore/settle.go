package mysqlstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// The outcomes of the settle procedure.
const (
	settled    = 0 // everything was settled
	fenceShort = 1 // nothing was settled: only the returned lanes are held
	rowsShort  = 2 // nothing was settled: only the returned rows exist
	keysShort  = 3 // nothing was settled: a row is not at its seq
)

const (
	// maxLeftover bounds the number of remembered dedup keys that could not be
	// freed. The next writer of a forgotten key finds and frees it.
	maxLeftover = 10_000
	// leftoverBatch is the number of leftover keys that one settlement tries to
	// free.
	leftoverBatch = 100
	// A settlement finds the rows of minKeys to maxKeys delivered events by
	// key, and of fewer or more by id. The statement of a condition must be
	// prepared, which only pays for several rows. The servers scan the whole
	// table if a condition has too many alternatives: from about 16,000 on,
	// with the default settings.
	minKeys, maxKeys = 20, 2000
	// maxRounds bounds how often a settlement starts over because rows changed
	// in the meantime.
	maxRounds = 10
)

// Settle implements [driver.Settler]. The procedure settles everything in one
// transaction, or returns the obstacle: lost lanes, rows that an operator
// discarded, or wrong hints. Settle then settles the rest without them.
// Obstacles are rare, so the normal case does not query which rows exist.
func (s *backend) Settle(ctx context.Context, settlement driver.Settlement) (driver.Settled, error) {
	if len(settlement.Done) > 0 && !settlement.History {
		if err := s.noteGap(ctx); err != nil {
			return driver.Settled{}, s.explain(err)
		}
	}
	s.freeLeftover(ctx)
	w := newWork(settlement)
	return s.settleWork(w, func() (answer, error) {
		args := []any{list(w.fences, fenceItem), w.doneList(), w.history, list(w.retry, retryItem), list(w.dead, deadItem), w.freeList()}
		if len(w.divert) == 0 {
			return s.callSettle(ctx, s.sql.settle, args...)
		}
		return s.callSettle(ctx, s.sql.settleDivert, append(args, w.divertList())...)
	})
}

// settleWork settles everything in w that can be settled. call tries to settle
// all that is left.
func (s *backend) settleWork(w *work, call func() (answer, error)) (driver.Settled, error) {
	for round := 0; ; round++ {
		if len(w.fences) == 0 {
			return driver.Settled{}, nil
		}
		answer, err := call()
		switch {
		case number(err) == errDeadlock && w.backlogs && round < maxRounds:
		case err != nil:
			return driver.Settled{}, s.explain(err)
		case answer.outcome == settled:
			s.keepLeftover(nil, answer.ids)
			return w.settled(), nil
		case round == maxRounds:
			return driver.Settled{}, errors.New("mysqlstore: settle: other sessions keep changing the rows")
		case answer.outcome == fenceShort:
			w.keepFences(answer.ids)
		case answer.outcome == keysShort:
			w.byID = true
		default:
			w.keepRows(answer.ids)
		}
	}
}

// answer is the result of the procedure. Depending on the outcome, ids are
// tokens, rows, or events whose dedup keys could not be freed.
type answer struct {
	outcome int
	ids     []waybill.ID
}

func (s *backend) callSettle(ctx context.Context, query string, args ...any) (answer, error) {
	var a answer
	var lane int
	var id scanID
	err := each(ctx, s.db, query, args, func() {
		if id != (scanID{}) {
			a.ids = append(a.ids, waybill.ID(id))
		}
	}, &a.outcome, &lane, &id)
	return a, err
}

// freeLeftover tries again to free dedup keys that could not be freed before.
// It runs outside the settlement: an operator may have replayed an event in the
// meantime, which then holds its key again, and that check needs a lock on the
// key's row. Failures are retried by the next settlement.
func (s *backend) freeLeftover(ctx context.Context) {
	tried := s.someLeftover()
	if len(tried) == 0 {
		return
	}
	if left, err := s.freeKeys(ctx, tried); err == nil {
		s.keepLeftover(tried, left)
	}
}

// someLeftover returns some of the events whose keys are still to be freed.
func (s *backend) someLeftover() []waybill.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var some []waybill.ID
	for id := range s.leftover {
		if len(some) == leftoverBatch {
			break
		}
		some = append(some, id)
	}
	return some
}

// keepLeftover records the events whose keys could not be freed this time.
func (s *backend) keepLeftover(tried, left []waybill.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range tried {
		delete(s.leftover, id)
	}
	for _, id := range left {
		if len(s.leftover) < maxLeftover {
			s.leftover[id] = struct{}{}
		}
	}
}

// work is the part of a settlement that is still to do.
type work struct {
	fences            []driver.Lease
	done, retry, dead []driver.Result
	divert            []diversion
	history           bool
	byID              bool // find all rows by id, not by key
	// backlogs reports that rows of backlogs are written. Operators write them,
	// too, in another order: a deadlock is no surprise, and nothing is lost by
	// starting over.
	backlogs bool
}

// diversion is a diversion of an event in a lane.
type diversion struct {
	driver.Diversion
	lane int
}

// newWork sorts fences and results into the order in which they are locked, so
// that two settlements of the same events cannot deadlock. It drops results
// that cannot be settled: those of lanes without a fence, and duplicates of an
// event.
func newWork(s driver.Settlement) *work {
	w := &work{history: s.History}
	w.fences = sortedFences(slices.Clone(s.Leases))
	seen := make(map[waybill.ID]bool, len(s.Done)+len(s.Retry)+len(s.Dead))
	first := func(results []driver.Result) []driver.Result {
		results = slices.DeleteFunc(slices.Clone(results), func(r driver.Result) bool {
			again := seen[r.ID]
			seen[r.ID] = true
			return again
		})
		slices.SortFunc(results, func(a, b driver.Result) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		return results
	}
	w.done, w.retry, w.dead = first(s.Done), first(s.Retry), first(s.Dead)
	w.addDiversions(s.Divert)
	w.dropUnfenced()
	w.byID = len(w.done) < minKeys || len(w.done) > maxKeys
	return w
}

// addDiversions adds the diversions of delivered events, in the order in which
// the events are locked.
func (w *work) addDiversions(diversions []driver.Diversion) {
	if len(diversions) == 0 {
		return
	}
	lanes := make(map[waybill.ID]int, len(w.done))
	for _, r := range w.done {
		lanes[r.ID] = r.Lane
	}
	for _, d := range diversions {
		if lane, done := lanes[d.ID]; done {
			w.divert = append(w.divert, diversion{d, lane})
		}
	}
	slices.SortStableFunc(w.divert, func(a, b diversion) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	w.backlogs = true
}

// keepFences drops lost lanes and their results.
func (w *work) keepFences(tokens []waybill.ID) {
	w.fences = slices.DeleteFunc(w.fences, func(l driver.Lease) bool { return !slices.Contains(tokens, l.Token) })
	w.dropUnfenced()
}

func (w *work) dropUnfenced() {
	fenced := make(map[int]bool, len(w.fences))
	for _, l := range w.fences {
		fenced[l.Lane] = true
	}
	w.keep(func(r driver.Result) bool { return fenced[r.Lane] })
}

// keepRows drops the results of missing rows. The procedure does not list rows
// that it found by key.
func (w *work) keepRows(ids []waybill.ID) {
	there := make(map[waybill.ID]bool, len(ids))
	for _, id := range ids {
		there[id] = true
	}
	for _, r := range w.done {
		if w.hasKey(r) {
			there[r.ID] = true
		}
	}
	w.keep(func(r driver.Result) bool { return there[r.ID] })
}

func (w *work) keep(fit func(driver.Result) bool) {
	for _, results := range []*[]driver.Result{&w.done, &w.retry, &w.dead} {
		*results = slices.DeleteFunc(*results, func(r driver.Result) bool { return !fit(r) })
	}
	w.divert = slices.DeleteFunc(w.divert, func(d diversion) bool { return !fit(driver.Result{Lane: d.lane, ID: d.ID}) })
}

// settled returns the answer after everything in w was settled.
func (w *work) settled() driver.Settled {
	var out driver.Settled
	for _, l := range w.fences {
		out.Held = append(out.Held, l.Lane)
	}
	for _, results := range [][]driver.Result{w.done, w.retry, w.dead} {
		for _, r := range results {
			out.Moved = append(out.Moved, r.ID)
		}
	}
	return out
}

// fenceItem is [lane, epoch, token].
func fenceItem(b []byte, l driver.Lease) []byte {
	b = strconv.AppendInt(append(b, '['), int64(l.Lane), 10)
	b = strconv.AppendInt(append(b, ','), l.Epoch, 10)
	return append(appendID(append(b, ','), l.Token), ']')
}

// hasKey reports whether the row of a delivered event is to be found by key.
func (w *work) hasKey(r driver.Result) bool { return !w.byID && !r.Late && r.Seq > 0 }

// doneList lists the delivered events for the procedure: the condition that
// finds rows by key, and the other rows as JSON. A row must also have one of
// the ids, because a seq is only a hint.
func (w *work) doneList() []byte {
	seqs := make(map[int][]byte, len(w.fences))
	var ids []byte
	var rest []driver.Result
	for _, r := range w.done {
		if !w.hasKey(r) {
			rest = append(rest, r)
			continue
		}
		seqs[r.Lane] = strconv.AppendInt(append(seqs[r.Lane], ','), r.Seq, 10)
		ids = append(hex.AppendEncode(append(ids, ",x'"...), r.ID[:]), '\'')
	}
	if len(rest) == len(w.done) {
		return list(rest, doneItem)
	}
	b := make([]byte, 0, 2*len(ids)+48*len(rest))
	b = append(strconv.AppendInt(b, int64(len(w.done)-len(rest)), 10), ':')
	or := "("
	for _, lane := range slices.Sorted(maps.Keys(seqs)) {
		b = strconv.AppendInt(append(append(b, or...), "lane = "...), int64(lane), 10)
		b = append(append(append(b, " AND seq IN ("...), seqs[lane][1:]...), ')')
		or = " OR "
	}
	b = append(append(append(b, ") AND id IN ("...), ids[1:]...), ");"...)
	return append(b, list(rest, doneItem)...)
}

// freeList returns the events whose dedup keys are to be freed.
func (w *work) freeList() []byte {
	var ids []waybill.ID
	for _, results := range [][]driver.Result{w.done, w.dead} {
		for _, r := range results {
			ids = append(ids, r.ID)
		}
	}
	return list(ids, appendID)
}

// divertList lists the diversions for the procedure.
func (w *work) divertList() []byte { return list(w.divert, divertItem) }

// list encodes a list as JSON.
func list[E any](elements []E, item func([]byte, E) []byte) []byte {
	b := make([]byte, 0, 2+48*len(elements))
	b = append(b, '[')
	for i, e := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, e)
	}
	return append(b, ']')
}

func appendID(b []byte, id waybill.ID) []byte { return strconv.AppendQuote(b, hexID(id)) }

// doneItem is [lane, id].
func doneItem(b []byte, r driver.Result) []byte { return append(appendKeyOf(b, r), ']') }

// retryItem is [lane, id, attempts, delay, holds, error, replay].
func retryItem(b []byte, r driver.Result) []byte {
	b = strconv.AppendInt(append(appendKeyOf(b, r), ','), int64(r.Attempts), 10)
	b = strconv.AppendInt(append(b, ','), r.Delay.Microseconds(), 10)
	return appendReplay(appendVerdict(b, r.Holds, r.Error), r)
}

// deadItem is [lane, id, attempts, holds, error, null, replay]: replay has the
// same position as in retryItem.
func deadItem(b []byte, r driver.Result) []byte {
	b = strconv.AppendInt(append(appendKeyOf(b, r), ','), int64(r.Attempts), 10)
	return appendReplay(append(appendVerdict(b, r.Holds, r.Error), ",null"...), r)
}

// divertItem is [destination, lane, id, attempts, delay or null, final, error].
func divertItem(b []byte, d diversion) []byte {
	b = strconv.AppendInt(append(b, '['), int64(d.Destination), 10)
	b = strconv.AppendInt(append(b, ','), int64(d.lane), 10)
	b = strconv.AppendInt(append(appendID(append(b, ','), d.ID), ','), int64(d.Attempts), 10)
	if d.Delay == 0 {
		b = append(b, ",null"...)
	} else {
		b = strconv.AppendInt(append(b, ','), d.Delay.Microseconds(), 10)
	}
	return append(appendVerdict(b, d.Final, d.Error), ']')
}

// appendReplay ends an item with the number of replays of its row when it was
// read.
func appendReplay(b []byte, r driver.Result) []byte {
	return append(strconv.AppendInt(append(b, ','), int64(r.Replay), 10), ']')
}

func appendKeyOf(b []byte, r driver.Result) []byte {
	b = strconv.AppendInt(append(b, '['), int64(r.Lane), 10)
	return appendID(append(b, ','), r.ID)
}

// appendVerdict appends a truth value and the text of an error.
func appendVerdict(b []byte, is bool, reason string) []byte {
	digit := byte('0')
	if is {
		digit = '1'
	}
	text, err := json.Marshal(driver.CutError(reason))
	if err != nil {
		panic(err) // encoding a string cannot fail
	}
	b = append(b, ',', digit, ',')
	return append(b, text...)
}
