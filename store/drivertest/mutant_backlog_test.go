package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlogs breaks one of the methods of every backlog.
func backlogs(change func(db complete, number int, w *worseBacklog)) tamper {
	return destined(func(db complete, w *worseRegistry) {
		w.backlog = func(number int) driver.Backlog {
			worse := &worseBacklog{Backlog: db.Backlog(number)}
			change(db, number, worse)
			return worse
		}
	})
}

// neighborly breaks a backlog that also sees those beside it.
func neighborly(change func(other driver.Backlog, w *worseBacklog)) tamper {
	return backlogs(func(db complete, number int, w *worseBacklog) { change(db.Backlog(number+1), w) })
}

// rowsRead breaks the rows that are read from backlogs.
func rowsRead(change func(r *row)) tamper {
	return backlogs(func(_ complete, _ int, w *worseBacklog) {
		page := func(p driver.Page, err error) (driver.Page, error) {
			for i := range p.Rows {
				change(&p.Rows[i])
			}
			return p, err
		}
		inner := w.Backlog
		w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
			return page(inner.Fetch(ctx, from, limit))
		}
		w.load = func(ctx context.Context, keys []store.Key) (driver.Page, error) { return page(inner.Load(ctx, keys)) }
		w.due = func(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
			return page(inner.Due(ctx, lanes, limit))
		}
		w.find = func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
			recs, err := inner.Find(ctx, id)
			for i := range recs {
				change(&recs[i].Row)
			}
			return recs, err
		}
	})
}

func both(p, more driver.Page, err error) (driver.Page, error) {
	p.Rows = append(p.Rows, more.Rows...)
	return p, err
}

func backlogReadMutants() []mutant {
	return []mutant{
		{"fetches rows of a neighbor", "backlog_reads divert", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				more, _ := other.Fetch(ctx, from, limit)
				p, err := w.Backlog.Fetch(ctx, from, limit)
				return both(p, more, err)
			}
		})},
		{"sweeps rows of a neighbor", "backlog_reads", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.sweep = func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
				more, _ := other.Sweep(ctx, from, limit)
				refs, err := w.Backlog.Sweep(ctx, from, limit)
				return append(refs, more...), err
			}
		})},
		{"loads rows of a destination before it", "backlog_reads", backlogs(func(db complete, number int, w *worseBacklog) {
			w.load = func(ctx context.Context, keys []store.Key) (driver.Page, error) {
				more, _ := db.Backlog(number-1).Load(ctx, keys)
				p, err := w.Backlog.Load(ctx, keys)
				return both(p, more, err)
			}
		})},
		{"returns due rows of a neighbor", "backlog_reads", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.due = func(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
				more, _ := other.Due(ctx, lanes, limit)
				p, err := w.Backlog.Due(ctx, lanes, limit)
				return both(p, more, err)
			}
		})},
		{"returns when a neighbor's row is due", "backlog_reads", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.due = func(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
				more, _ := other.Due(ctx, lanes, limit)
				p, err := w.Backlog.Due(ctx, lanes, limit)
				if p.Next.IsZero() || !more.Next.IsZero() && more.Next.Before(p.Next) {
					p.Next = more.Next
				}
				return p, err
			}
		})},
		{"returns holds of a neighbor", "backlog_reads", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.holds = func(ctx context.Context, lanes []int) ([]driver.Hold, error) {
				more, _ := other.Holds(ctx, lanes)
				held, err := w.Backlog.Holds(ctx, lanes)
				return append(held, more...), err
			}
		})},
		{"follows an aggregate in the outbox", "backlog_reads", backlogs(func(db complete, _ int, w *worseBacklog) { w.follow = db.FetchAggregate })},
		{"takes urgent rows from the outbox", "backlog_reads", backlogs(func(db complete, _ int, w *worseBacklog) { w.urgent = db.FetchPriority })},
		{"reads holds from the outbox", "backlog_reads", backlogs(func(db complete, _ int, w *worseBacklog) { w.holds = db.Holds })},
		{"reports the writers of the outbox", "backlog_reads", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.writers = func(context.Context) (driver.WriterState, error) {
				return driver.WriterState{HighSeq: 1 << 40, Issued: 1 << 40}, nil
			}
		})},
		{"reads lanes modulo 1024", "backlog_reads", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				from = slices.Clone(from)
				for i := range from {
					from[i].Lane = (from[i].Lane + 4096) % 1024
				}
				return w.Backlog.Fetch(ctx, from, limit)
			}
		})},
		{"has its own bounds of lanes", "backlog_reads", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				return w.Backlog.Fetch(ctx, slices.DeleteFunc(slices.Clone(from), func(c driver.Cursor) bool { return c.Lane >= 1023 }), limit)
			}
		})},
		{"needs an upper bound to sweep", "backlog_reads", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.sweep = func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
				return w.Backlog.Sweep(ctx, slices.DeleteFunc(slices.Clone(from), func(c driver.Cursor) bool { return c.UpTo == 0 }), limit)
			}
		})},
		{"hides rows with a due time", "divert", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				p, err := w.Backlog.Fetch(ctx, from, limit)
				p.Rows = slices.DeleteFunc(p.Rows, func(r row) bool { return r.DueAt.After(p.Now) })
				return p, err
			}
		})},
		{"hides attempts", "divert backlog_settle", rowsRead(func(r *row) { r.Attempts = 0 })},
		{"hides due times", "divert backlog_inspect", rowsRead(func(r *row) { r.DueAt, r.Event.AvailableAt = time.Time{}, time.Time{} })},
		{"hides replay numbers", "divert refill backlog_dead_letters", rowsRead(func(r *row) { r.Replay = 0 })},
		{"shows lanes as they are stored", "divert backlog_reads refill", rowsRead(func(r *row) { r.Lane += 1024 })},
		{"shows a final failure in every state", "backlog_settle", rowsRead(func(r *row) { r.Final = r.Final || r.Attempts > 4 })},
		{"shows ready rows as holding", "divert refill", rowsRead(func(r *row) { r.Holds = r.Holds || r.DueAt.IsZero() })},
		{"forgets when an event was written", "divert refill", rowsRead(func(r *row) { r.CreatedAt = time.Now().UTC().Truncate(time.Microsecond) })},
		{"does not say for which aggregate it holds", "backlog_reads", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.holds = func(ctx context.Context, lanes []int) ([]driver.Hold, error) {
				held, err := w.Backlog.Holds(ctx, lanes)
				for i := range held {
					held[i].Aggregate = store.Aggregate{}
				}
				return held, err
			}
		})},
	}
}

func backlogInspectMutants() []mutant {
	stats := func(change func(s *store.Stats, db complete)) tamper {
		return backlogs(func(db complete, _ int, w *worseBacklog) {
			w.stats = func(ctx context.Context) (store.Stats, error) {
				s, err := w.Backlog.Stats(ctx)
				change(&s, db)
				return s, err
			}
		})
	}
	occupied := func(other bool, fits func(rec store.Record) bool) tamper {
		return backlogs(func(db complete, number int, w *worseBacklog) {
			w.occupied = func(ctx context.Context) ([]int, error) {
				var lanes []int
				for n := range number + 2 {
					if n != number && !other {
						continue
					}
					for _, state := range states[:3] {
						recs, err := db.Backlog(n).List(ctx, state, store.Filter{}, 0, 1000)
						if err != nil {
							return nil, err
						}
						for _, rec := range recs {
							if fits(rec) {
								lanes = append(lanes, rec.Lane)
							}
						}
					}
				}
				slices.Sort(lanes)
				return slices.Compact(lanes), nil
			}
		})
	}
	return []mutant{
		{"has nodes in a backlog", "backlog_inspect", stats(func(s *store.Stats, db complete) {
			outbox, _ := db.Stats(context.Background())
			s.Nodes = outbox.Nodes
		})},
		{"has lanes in a backlog", "backlog_inspect", stats(func(s *store.Stats, db complete) {
			outbox, _ := db.Stats(context.Background())
			s.Lanes = outbox.Lanes
		})},
		{"counts the attempts of the outbox", "backlog_inspect", stats(func(s *store.Stats, _ complete) { s.MaxAttempts = 0 })},
		{"counts the rows of all backlogs", "backlog_inspect", stats(func(s *store.Stats, db complete) {
			next, _ := db.Backlog(3).Stats(context.Background())
			s.Failed += next.Failed
		})},
		{"does not know the oldest row of a backlog", "backlog_inspect", stats(func(s *store.Stats, _ complete) { s.Oldest = time.Time{} })},
		{"takes every ready row for untried", "backlog_inspect", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.list = func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
				if state == store.Ready && f.Failed && !f.Untried {
					return nil, nil
				}
				return w.Backlog.List(ctx, state, f, after, limit)
			}
		})},
		{"counts every ready row as untried", "backlog_inspect", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.count = func(ctx context.Context, state store.State, f store.Filter) (int64, error) {
				f.Untried = f.Untried && state != store.Ready
				return w.Backlog.Count(ctx, state, f)
			}
		})},
		{"lists the rows of a neighbor", "backlog_inspect", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.list = func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
				more, _ := other.List(ctx, state, f, after, limit)
				recs, err := w.Backlog.List(ctx, state, f, after, limit)
				return append(recs, more...), err
			}
		})},
		{"counts the rows of a neighbor", "backlog_inspect", neighborly(func(other driver.Backlog, w *worseBacklog) {
			w.count = func(ctx context.Context, state store.State, f store.Filter) (int64, error) {
				more, _ := other.Count(ctx, state, f)
				n, err := w.Backlog.Count(ctx, state, f)
				return n + more, err
			}
		})},
		{"finds rows of all destinations", "backlog_inspect", backlogs(func(db complete, number int, w *worseBacklog) {
			w.find = func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
				for _, n := range []int{number, 1, 2, 3} {
					if recs, err := db.Backlog(n).Find(ctx, id); err != nil || len(recs) > 0 {
						return recs, err
					}
				}
				return nil, nil
			}
		})},
		{"finds the events of the outbox", "backlog_inspect", backlogs(func(db complete, _ int, w *worseBacklog) {
			w.find = func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
				if recs, err := w.Backlog.Find(ctx, id); err != nil || len(recs) > 0 {
					return recs, err
				}
				return db.Find(ctx, id)
			}
		})},
		{"lists the history in a backlog", "backlog_inspect", backlogs(func(db complete, _ int, w *worseBacklog) {
			w.list = func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
				if state == store.Delivered {
					return db.List(ctx, state, f, after, limit)
				}
				return w.Backlog.List(ctx, state, f, after, limit)
			}
		})},
		{"takes lanes with any dead letter for occupied", "backlog_inspect", occupied(false, func(store.Record) bool { return true })},
		{"takes lanes with dead letters for free", "backlog_inspect", occupied(false, func(rec store.Record) bool { return rec.State != store.Dead })},
		{"takes lanes with deferred rows for free", "backlog_inspect", occupied(false, func(rec store.Record) bool {
			return rec.State == store.Ready || rec.State == store.Dead && rec.Holds
		})},
		{"takes lanes with ready rows for free", "backlog_inspect", occupied(false, func(rec store.Record) bool {
			return rec.State == store.Delayed || rec.State == store.Dead && rec.Holds
		})},
		{"takes lanes of all backlogs for occupied", "backlog_inspect", occupied(true, func(rec store.Record) bool {
			return rec.State != store.Dead || rec.Holds
		})},
		{"returns occupied lanes in any order", "backlog_inspect", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.occupied = func(ctx context.Context) ([]int, error) {
				lanes, err := w.Backlog.Occupied(ctx)
				slices.Reverse(lanes)
				return lanes, err
			}
		})},
	}
}
