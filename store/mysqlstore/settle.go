package mysqlstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// The outcomes of the procedure that settles.
const (
	settled    = 0 // all of it
	fenceShort = 1 // nothing: only these lanes are held
	rowsShort  = 2 // nothing: only these rows are there
)

const (
	// maxLeftover bounds how many dedup keys are remembered that could not be freed. What is forgotten is found by the next
	// writer of the key.
	maxLeftover = 10_000
	// manyLeftover is how many of them one settlement tries.
	manyLeftover = 100
	// maxRounds bounds how often a settlement begins again because rows came and went meanwhile.
	maxRounds = 10
)

// Settle implements [store.Settler]. The procedure does all of it in one transaction, or says what stands in the way: lanes that were
// lost, or rows that an operator has discarded. Then the rest is settled without them. That is rare, and it keeps the usual case
// free of asking which rows there are.
func (s *Store) Settle(ctx context.Context, settlement store.Settlement) (store.Settled, error) {
	if len(settlement.Done) > 0 && !settlement.History {
		if err := s.noteGap(ctx); err != nil {
			return store.Settled{}, s.explain(err)
		}
	}
	s.freeLeftover(ctx)
	w := newWork(settlement)
	for round := 0; ; round++ {
		if len(w.fences) == 0 {
			return store.Settled{}, nil
		}
		answer, err := s.callSettle(ctx, w)
		switch {
		case err != nil:
			return store.Settled{}, s.explain(err)
		case answer.outcome == settled:
			s.keepLeftover(nil, answer.ids)
			return w.settled(), nil
		case round == maxRounds:
			return store.Settled{}, errors.New("mysqlstore: settle: the rows keep changing; somebody else is at work on them")
		case answer.outcome == fenceShort:
			w.keepFences(answer.ids)
		default:
			w.keepRows(answer.ids)
		}
	}
}

// answer is what the procedure says. ids are tokens, rows or dedup keys that could not be freed, by the outcome.
type answer struct {
	outcome int
	ids     []waybill.ID
}

func (s *Store) callSettle(ctx context.Context, w *work) (answer, error) {
	var a answer
	var lane int
	var id scanID
	args := []any{list(w.fences, fenceItem), list(w.done, doneItem), w.history, list(w.retry, retryItem), list(w.dead, deadItem), w.freeList()}
	err := each(ctx, s.db, s.sql.settle, args, func() {
		if id != (scanID{}) {
			a.ids = append(a.ids, waybill.ID(id))
		}
	}, &a.outcome, &lane, &id)
	return a, err
}

// freeLeftover tries again to free keys that could not be freed before. Not in the settlement itself: an operator may have replayed an
// event since, which then has its key again, and that must be looked at with the key's row locked. What fails is tried the next time.
func (s *Store) freeLeftover(ctx context.Context) {
	tried := s.someLeftover()
	if len(tried) == 0 {
		return
	}
	if left, err := s.freeKeys(ctx, tried); err == nil {
		s.keepLeftover(tried, left)
	}
}

// someLeftover returns some of the keys that are still to be freed.
func (s *Store) someLeftover() []waybill.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var some []waybill.ID
	for id := range s.leftover {
		if len(some) == manyLeftover {
			break
		}
		some = append(some, id)
	}
	return some
}

// keepLeftover notes which keys could not be freed this time.
func (s *Store) keepLeftover(tried, left []waybill.ID) {
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

// work is what is left of a settlement.
type work struct {
	fences            []store.Lease
	done, retry, dead []store.Result
	history           bool
}

// newWork puts fences and results into one order, in which they are locked, so that two settlements of the same cannot deadlock; and
// leaves out what cannot be settled: results of lanes without a fence, and second ones of the same event.
func newWork(s store.Settlement) *work {
	w := &work{history: s.History}
	w.fences = sortedFences(slices.Clone(s.Leases))
	seen := make(map[waybill.ID]bool, len(s.Done)+len(s.Retry)+len(s.Dead))
	first := func(results []store.Result) []store.Result {
		results = slices.DeleteFunc(slices.Clone(results), func(r store.Result) bool {
			again := seen[r.ID]
			seen[r.ID] = true
			return again
		})
		slices.SortFunc(results, func(a, b store.Result) int { return bytes.Compare(a.ID[:], b.ID[:]) })
		return results
	}
	w.done, w.retry, w.dead = first(s.Done), first(s.Retry), first(s.Dead)
	w.dropUnfenced()
	return w
}

// keepFences drops the lanes that are lost, with their results.
func (w *work) keepFences(tokens []waybill.ID) {
	w.fences = slices.DeleteFunc(w.fences, func(l store.Lease) bool { return !slices.Contains(tokens, l.Token) })
	w.dropUnfenced()
}

func (w *work) dropUnfenced() {
	fenced := make(map[int]bool, len(w.fences))
	for _, l := range w.fences {
		fenced[l.Lane] = true
	}
	w.keep(func(r store.Result) bool { return fenced[r.Lane] })
}

// keepRows drops the results of rows that are gone.
func (w *work) keepRows(ids []waybill.ID) {
	there := make(map[waybill.ID]bool, len(ids))
	for _, id := range ids {
		there[id] = true
	}
	w.keep(func(r store.Result) bool { return there[r.ID] })
}

func (w *work) keep(fit func(store.Result) bool) {
	for _, results := range []*[]store.Result{&w.done, &w.retry, &w.dead} {
		*results = slices.DeleteFunc(*results, func(r store.Result) bool { return !fit(r) })
	}
}

// settled is the answer when all that is left was settled.
func (w *work) settled() store.Settled {
	var out store.Settled
	for _, l := range w.fences {
		out.Held = append(out.Held, l.Lane)
	}
	for _, results := range [][]store.Result{w.done, w.retry, w.dead} {
		for _, r := range results {
			out.Moved = append(out.Moved, r.ID)
		}
	}
	return out
}

// fenceItem is [lane, epoch, token].
func fenceItem(b []byte, l store.Lease) []byte {
	b = strconv.AppendInt(append(b, '['), int64(l.Lane), 10)
	b = strconv.AppendInt(append(b, ','), l.Epoch, 10)
	return append(appendID(append(b, ','), l.Token), ']')
}

// freeList is the events whose dedup keys are to be freed.
func (w *work) freeList() []byte {
	var ids []waybill.ID
	for _, results := range [][]store.Result{w.done, w.dead} {
		for _, r := range results {
			ids = append(ids, r.ID)
		}
	}
	return list(ids, appendID)
}

// list returns a list in JSON.
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
func doneItem(b []byte, r store.Result) []byte { return append(appendKeyOf(b, r), ']') }

// retryItem is [lane, id, attempts, delay, holds, error, replay].
func retryItem(b []byte, r store.Result) []byte {
	b = strconv.AppendInt(append(appendKeyOf(b, r), ','), int64(r.Attempts), 10)
	b = strconv.AppendInt(append(b, ','), r.Delay.Microseconds(), 10)
	return appendReplay(appendVerdict(b, r), r)
}

// deadItem is [lane, id, attempts, holds, error, null, replay]: the replay has the same place as in retryItem.
func deadItem(b []byte, r store.Result) []byte {
	b = strconv.AppendInt(append(appendKeyOf(b, r), ','), int64(r.Attempts), 10)
	return appendReplay(append(appendVerdict(b, r), ",null"...), r)
}

// appendReplay ends an item with the number of replays that its row had when it was read.
func appendReplay(b []byte, r store.Result) []byte {
	return append(strconv.AppendInt(append(b, ','), int64(r.Replay), 10), ']')
}

func appendKeyOf(b []byte, r store.Result) []byte {
	b = strconv.AppendInt(append(b, '['), int64(r.Lane), 10)
	return appendID(append(b, ','), r.ID)
}

func appendVerdict(b []byte, r store.Result) []byte {
	holds := byte('0')
	if r.Holds {
		holds = '1'
	}
	text, err := json.Marshal(store.CutError(r.Error))
	if err != nil {
		panic(err) // a string can always be encoded
	}
	b = append(b, ',', holds, ',')
	return append(b, text...)
}
