package ledger

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// world is the tables that a random script reads from: what a store would
// answer.
type world struct {
	rows   []*worldRow
	byName map[string]*worldRow
	open   []*worldTx
	seq    int64
	txs    int
	// lanes are the owned lanes.
	lanes map[int]bool
	// unannounced are commits whose announcement is on its way.
	unannounced []announcement
}

type announcement struct {
	names []string
	at    time.Time
}

type worldTx struct {
	name string
	rows []*worldRow
}

// worldRow is a row. The rows of an open transaction are not visible.
type worldRow struct {
	name, agg, dest string
	tenant          string
	seq             int64
	lane, priority  int
	table           string // open, ready, delayed, dead or gone
	due             time.Time
	holds           bool
	attempts        int
	replay          int
	decided         bool // delivered, dead, or discarded
	settled         bool // its delivery is settled
}

func newWorld() *world {
	return &world{byName: make(map[string]*worldRow), lanes: make(map[int]bool)}
}

// draw draws a seq for an event of an open transaction.
func (w *world) draw(tx *worldTx, agg, dest, tenant string, lane, priority int) {
	w.seq++
	prefix := agg
	if agg == "" {
		prefix = "n"
	}
	r := &worldRow{name: fmt.Sprint(prefix, w.seq), agg: agg, dest: dest, tenant: tenant, seq: w.seq, lane: lane, priority: priority, table: "open"}
	w.rows = append(w.rows, r)
	w.byName[r.name] = r
	tx.rows = append(tx.rows, r)
}

// writes reports whether an open transaction has written to an aggregate: it
// has a lock on what the aggregate stands for.
func (w *world) writes(agg string) bool {
	return slices.ContainsFunc(w.open, func(tx *worldTx) bool {
		return slices.ContainsFunc(tx.rows, func(r *worldRow) bool { return r.agg == agg })
	})
}

// end ends a transaction.
func (w *world) end(at int, commit bool, now time.Time) {
	tx := w.open[at]
	w.open = slices.Delete(w.open, at, at+1)
	var names []string
	for _, r := range tx.rows {
		r.table = "gone"
		r.decided = !commit
		if commit {
			r.table = "ready"
			names = append(names, r.name)
		}
	}
	if commit {
		w.unannounced = append(w.unannounced, announcement{names: names, at: now})
	}
}

// firstWord returns how the first command mentions a row.
func (r *worldRow) firstWord() string {
	out := fmt.Sprintf("%d:%s", r.seq, r.name)
	if r.agg != "" {
		out += "/" + r.agg
	}
	if r.tenant != "" {
		out += ",tenant=" + r.tenant
	}
	return out + fmt.Sprintf(",lane=%d,priority=%d,to=%s,kb=%d", r.lane, r.priority, r.dest, r.seq%7)
}

// word returns how a later command mentions a row.
func (r *worldRow) word() string {
	out := r.name
	if r.table == "delayed" {
		out += fmt.Sprintf(",attempts=%d,replay=%d", r.attempts, r.replay)
		if r.holds {
			out += ",holds"
		}
	}
	return out
}

// answer returns the words of the answer to a read.
func (w *world) answer(r *Read, now time.Time) []string {
	var out []string
	var next time.Time
	for _, row := range w.rows {
		switch {
		case r.Kind == ReadHolds:
			if row.holds && (row.table == "delayed" || row.table == "dead") {
				out = append(out, row.word())
			}
		case r.Kind == ReadDue:
			if row.table == "delayed" && !row.due.After(now) {
				out = append(out, row.word())
			} else if row.table == "delayed" && (next.IsZero() || row.due.Before(next)) {
				next = row.due
			}
		case row.table == "ready" && r.Kind == ReadUrgent && w.waitsForOthers(r, row):
			out = append(out, row.word()+",waits")
		case row.table == "ready":
			out = append(out, row.word())
		}
	}
	if !next.IsZero() {
		out = append(out, "next="+next.Sub(now).String())
	}
	return out
}

// waitsForOthers reports whether there is a row with priority 0 of the same
// aggregate in front of an urgent row: then the store does not return it.
func (w *world) waitsForOthers(r *Read, row *worldRow) bool {
	if row.agg == "" {
		return false
	}
	var after int64
	for _, c := range r.Cursors {
		if c.Lane == row.lane {
			after = c.After
		}
	}
	return slices.ContainsFunc(w.rows, func(x *worldRow) bool {
		return x.agg == row.agg && x.table == "ready" && x.priority == 0 && x.seq > after && x.seq < row.seq
	})
}

// after returns the words for what is read after a page: open transactions, and
// the rows of a check.
func (w *world) after(r *Read) []string {
	var out []string
	if r.Verify {
		out = append(out, "high="+strconv.FormatInt(w.seq, 10))
		var open []string
		for _, tx := range w.open {
			open = append(open, tx.name)
		}
		if len(open) > 0 {
			out = append(out, "open="+strings.Join(open, ","))
		}
	}
	if len(r.Check) > 0 {
		out = append(out, "check")
		for _, row := range w.rows {
			if row.table == "ready" {
				out = append(out, row.word())
			}
		}
	}
	return out
}

// settle applies a settlement, and returns the options of its answer.
func (w *world) settle(s *Settlement, name func(*driver.Result) string, now time.Time) string {
	var gone, lost []string
	for _, l := range s.Leases {
		if !w.lanes[l.Lane] {
			lost = append(lost, strconv.Itoa(l.Lane))
		}
	}
	apply := func(results []driver.Result, to string) {
		for i := range results {
			res := &results[i]
			r := w.byName[name(res)]
			if !w.lanes[res.Lane] {
				continue
			}
			if r.table != "ready" && r.table != "delayed" || to != "gone" && r.replay != res.Replay {
				gone = append(gone, r.name)
				continue
			}
			r.table, r.holds, r.attempts, r.due = to, res.Holds, res.Attempts, now.Add(res.Delay)
			if to == "gone" {
				r.settled = true
			}
		}
	}
	apply(s.Done, "gone")
	apply(s.Retry, "delayed")
	apply(s.Dead, "dead")
	return "lost=" + strings.Join(lost, ",") + " gone=" + strings.Join(gone, ",")
}

// left returns the names of the rows that are to be delivered.
func (w *world) left() []string {
	var out []string
	for _, r := range w.rows {
		if r.table == "ready" || r.table == "delayed" {
			out = append(out, r.name)
		}
	}
	return out
}
