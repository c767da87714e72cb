package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// settlesIn breaks the input of settlements of a backlog.
func settlesIn(change func(s *driver.Settlement)) tamper {
	return backlogs(func(_ complete, _ int, w *worseBacklog) {
		w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
			s.Leases, s.Done, s.Retry, s.Dead = slices.Clone(s.Leases), slices.Clone(s.Done), slices.Clone(s.Retry), slices.Clone(s.Dead)
			change(&s)
			return w.Backlog.Settle(ctx, s)
		}
	})
}

// settledIn does more after a settlement of a backlog.
func settledIn(more func(ctx context.Context, db complete, number int, s driver.Settlement, out *driver.Settled)) tamper {
	return backlogs(func(db complete, number int, w *worseBacklog) {
		w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
			out, err := w.Backlog.Settle(ctx, s)
			if err == nil {
				more(ctx, db, number, s, &out)
			}
			return out, err
		}
	})
}

// fencesIn breaks the fence of backlogs: fence returns the leases that count.
func fencesIn(fence func(p *present, leases []driver.Lease) []driver.Lease) tamper {
	return func(db complete) complete {
		p, w := watch(db)
		w.backlog = func(number int) driver.Backlog {
			inner := db.Backlog(number)
			return &worseBacklog{Backlog: inner, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Leases = fence(p, slices.Clone(s.Leases))
				return inner.Settle(ctx, s)
			}}
		}
		return w
	}
}

func backlogSettleMutants() []mutant {
	return []mutant{
		{"settles rows of all destinations", "backlog_settle", settledIn(func(ctx context.Context, db complete, number int, s driver.Settlement, _ *driver.Settled) {
			_, _ = db.Backlog(number+1).Settle(ctx, s)
		})},
		{"deletes rows of all destinations", "backlog_settle", settledIn(func(ctx context.Context, db complete, number int, s driver.Settlement, _ *driver.Settled) {
			for n := range 4 {
				if n != number {
					_, _ = db.Backlog(n).Settle(ctx, driver.Settlement{Leases: s.Leases, Done: s.Done})
				}
			}
		})},
		{"settles backlogs without a fence", "backlog_settle", fencesIn(func(p *present, leases []driver.Lease) []driver.Lease { return p.of(leases) })},
		{"looks at the epoch of a backlog's lane only", "backlog_settle", fencesIn(func(p *present, leases []driver.Lease) []driver.Lease {
			for i, held := range p.of(leases) {
				leases[i].Token = held.Token
			}
			return leases
		})},
		{"looks at the token of a backlog's lane only", "backlog_settle", fencesIn(func(p *present, leases []driver.Lease) []driver.Lease {
			for i, held := range p.of(leases) {
				leases[i].Epoch = held.Epoch
			}
			return leases
		})},
		{"looks for the fence among the lanes as they are stored", "backlog_settle", fencesIn(func(_ *present, leases []driver.Lease) []driver.Lease {
			for i := range leases {
				leases[i].Lane %= 1024
			}
			return leases
		})},
		{"does not set the delivery time", "backlog_settle", settlesIn(func(s *driver.Settlement) { s.History = false })},
		{"always sets the delivery time", "backlog_settle", settlesIn(func(s *driver.Settlement) { s.History = true })},
		{"sets the delivery time of dead events", "backlog_settle", func(db complete) complete {
			w := &worse{complete: db}
			died := map[waybill.ID]time.Time{}
			w.backlog = func(number int) driver.Backlog {
				inner := db.Backlog(number)
				return &worseBacklog{Backlog: inner, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
					for _, r := range s.Dead {
						died[r.ID] = time.Now().UTC().Truncate(time.Microsecond)
					}
					return inner.Settle(ctx, s)
				}}
			}
			w.find = func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
				recs, err := db.Find(ctx, id)
				for i := range recs {
					if at, ok := died[recs[i].ID]; ok {
						recs[i].EndedAt = at
					}
				}
				return recs, err
			}
			return w
		}},
		{"removes delivered events from the history", "backlog_settle", settledIn(func(ctx context.Context, db complete, _ int, s driver.Settlement, _ *driver.Settled) {
			if len(s.Done) > 0 {
				_, _ = db.Purge(ctx, store.Delivered, 0, 1000)
			}
		})},
		{"settles a backlog whatever the replay number", "backlog_settle", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Retry, s.Dead = slices.Clone(s.Retry), slices.Clone(s.Dead)
				for _, results := range [][]driver.Result{s.Retry, s.Dead} {
					for i := range results {
						if recs, err := w.Backlog.Find(ctx, results[i].ID); err == nil && len(recs) > 0 {
							results[i].Replay = recs[0].Replay
						}
					}
				}
				return w.Backlog.Settle(ctx, s)
			}
		})},
		{"ignores lower replay numbers only", "backlog_settle", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Dead = slices.Clone(s.Dead)
				for i := range s.Dead {
					if recs, err := w.Backlog.Find(ctx, s.Dead[i].ID); err == nil && len(recs) > 0 {
						s.Dead[i].Replay = min(s.Dead[i].Replay, recs[0].Replay)
					}
				}
				return w.Backlog.Settle(ctx, s)
			}
		})},
		{"wants a replay number with done results", "backlog_settle", settlesIn(func(s *driver.Settlement) {
			s.Done = slices.DeleteFunc(s.Done, func(r driver.Result) bool { return r.Replay > 1 })
		})},
		{"settles only rows that are ready in a backlog", "backlog_settle backlog_dead_letters", settlesIn(func(s *driver.Settlement) {
			s.Done = slices.DeleteFunc(s.Done, func(r driver.Result) bool { return r.Late })
		})},
		{"forgets the holds of a backlog", "backlog_settle backlog_reads backlog_dead_letters", settlesIn(func(s *driver.Settlement) {
			for _, results := range [][]driver.Result{s.Retry, s.Dead} {
				for i := range results {
					results[i].Holds = false
				}
			}
		})},
		{"forgets the errors of a backlog", "backlog_settle", settlesIn(func(s *driver.Settlement) {
			for i := range s.Dead {
				s.Dead[i].Error = ""
			}
		})},
		{"retries at once in a backlog", "backlog_settle backlog_reads", settlesIn(func(s *driver.Settlement) {
			for i := range s.Retry {
				s.Retry[i].Delay = 0
			}
		})},
		{"does not report the moved events of a backlog", "backlog_settle", settledIn(func(_ context.Context, _ complete, _ int, _ driver.Settlement, out *driver.Settled) { out.Moved = nil })},
		{"does not report the held lanes of a backlog", "backlog_settle", settledIn(func(_ context.Context, _ complete, _ int, _ driver.Settlement, out *driver.Settled) { out.Held = nil })},
		{"leaves backlogs in their lanes", "backlog_settle", func(db complete) complete {
			w := &worse{complete: db}
			changed := 0
			w.setLanes = func(ctx context.Context, n int) error {
				changed = n
				return db.SetLanes(ctx, n)
			}
			w.backlog = func(number int) driver.Backlog {
				inner := db.Backlog(number)
				return &worseBacklog{Backlog: inner, find: func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
					recs, err := inner.Find(ctx, id)
					for i := range recs {
						if changed > 0 && recs[i].State == store.Dead {
							recs[i].Lane = changed
						}
					}
					return recs, err
				}}
			}
			return w
		}},
		{"frees keys of diverted events", "divert", func(db complete) complete {
			w := &worse{complete: db}
			freed := map[string]bool{}
			w.backlog = func(number int) driver.Backlog {
				inner := db.Backlog(number)
				return &worseBacklog{Backlog: inner, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
					for _, r := range slices.Concat(s.Done, s.Dead) {
						recs, _ := inner.Find(ctx, r.ID)
						for _, rec := range recs {
							freed[rec.Event.DedupKey] = true
						}
					}
					return inner.Settle(ctx, s)
				}}
			}
			w.append = func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
				evs = slices.Clone(evs)
				for i := range evs {
					if freed[evs[i].DedupKey] {
						evs[i].DedupKey = ""
					}
				}
				return db.Append(ctx, tx, evs)
			}
			return w
		}},
	}
}

func backlogDeadMutants() []mutant {
	everywhere := func(ctx context.Context, db complete, number int, do func(ctx context.Context, b driver.Backlog)) {
		for n := 1; n < 5; n++ {
			if n != number {
				do(ctx, db.Backlog(n))
			}
		}
	}
	return []mutant{
		{"replays in all backlogs", "backlog_dead_letters", backlogs(func(db complete, number int, w *worseBacklog) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				everywhere(ctx, db, number, func(ctx context.Context, b driver.Backlog) { _, _ = b.Replay(ctx, ids) })
				return w.Backlog.Replay(ctx, ids)
			}
		})},
		{"replays in the outbox", "backlog_dead_letters", backlogs(func(db complete, _ int, w *worseBacklog) { w.replay = db.Replay })},
		{"refuses to replay in a backlog", "backlog_dead_letters divert", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.replay = func(_ context.Context, ids []waybill.ID) (store.Replayed, error) {
				var out store.Replayed
				for _, id := range ids {
					out.Refused = append(out.Refused, store.Refusal{ID: id})
				}
				return out, nil
			}
		})},
		{"reports every id as replayed", "backlog_dead_letters", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				_, err := w.Backlog.Replay(ctx, ids)
				return store.Replayed{IDs: ids}, err
			}
		})},
		{"discards in all backlogs", "backlog_dead_letters", backlogs(func(db complete, number int, w *worseBacklog) {
			w.discard = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				everywhere(ctx, db, number, func(ctx context.Context, b driver.Backlog) { _, _ = b.Discard(ctx, ids) })
				return w.Backlog.Discard(ctx, ids)
			}
		})},
		{"discards in the outbox", "backlog_dead_letters", backlogs(func(db complete, _ int, w *worseBacklog) {
			w.discard = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				_, _ = db.Discard(ctx, ids)
				return w.Backlog.Discard(ctx, ids)
			}
		})},
		{"discards rows that are not dead", "backlog_dead_letters", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.discard = func(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) { return ids, nil }
		})},
		{"unblocks in all backlogs", "backlog_dead_letters", backlogs(func(db complete, number int, w *worseBacklog) {
			w.unblock = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				everywhere(ctx, db, number, func(ctx context.Context, b driver.Backlog) { _, _ = b.Unblock(ctx, ids) })
				return w.Backlog.Unblock(ctx, ids)
			}
		})},
		{"unblocks in the outbox", "backlog_dead_letters", backlogs(func(db complete, _ int, w *worseBacklog) {
			w.unblock = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				_, _ = db.Unblock(ctx, ids)
				return w.Backlog.Unblock(ctx, ids)
			}
		})},
		{"knows no past after a discard in a backlog", "backlog_dead_letters", func(db complete) complete {
			discarded := false
			w := &worse{complete: db}
			w.backlog = func(number int) driver.Backlog {
				inner := db.Backlog(number)
				return &worseBacklog{Backlog: inner, discard: func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
					discarded = true
					return inner.Discard(ctx, ids)
				}}
			}
			w.committed = func(ctx context.Context, id waybill.ID) (bool, error) {
				if yes, err := db.Committed(ctx, id); err != nil || yes || !discarded {
					return yes, err
				}
				return false, waybill.ErrUncertain
			}
			return w
		}},
		{"purges fresh dead letters", "backlog_dead_letters", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.purgeDead = func(ctx context.Context, _ time.Duration, limit int) (int, error) {
				return w.Backlog.PurgeDead(ctx, 0, limit)
			}
		})},
		{"purges all dead letters at once", "backlog_dead_letters", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.purgeDead = func(ctx context.Context, age time.Duration, _ int) (int, error) {
				return w.Backlog.PurgeDead(ctx, age, 1000)
			}
		})},
		{"purges dead letters of all backlogs", "backlog_dead_letters", backlogs(func(db complete, number int, w *worseBacklog) {
			w.purgeDead = func(ctx context.Context, age time.Duration, limit int) (int, error) {
				everywhere(ctx, db, number, func(ctx context.Context, b driver.Backlog) { _, _ = b.PurgeDead(ctx, age, limit) })
				return w.Backlog.PurgeDead(ctx, age, limit)
			}
		})},
		{"purges dead letters of the outbox", "backlog_dead_letters", backlogs(func(db complete, _ int, w *worseBacklog) {
			w.purgeDead = func(ctx context.Context, age time.Duration, limit int) (int, error) {
				return db.Purge(ctx, store.Dead, age, limit)
			}
		})},
		{"purges in the order of seqs", "backlog_dead_letters", backlogs(func(_ complete, _ int, w *worseBacklog) {
			w.purgeDead = func(ctx context.Context, age time.Duration, limit int) (int, error) {
				recs, err := w.Backlog.List(ctx, store.Dead, store.Filter{}, 0, limit)
				if err != nil || age > 0 {
					return 0, err
				}
				ids, err := w.Backlog.Discard(ctx, recordIDs(recs))
				return len(ids), err
			}
		})},
	}
}
