package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// operates breaks one of the methods of worseOperator.
func operates(change func(db complete, w *worseOperator)) tamper {
	return func(db complete) complete {
		w := &worse{complete: db}
		change(db, &w.worseOperator)
		return w
	}
}

func heldRows(change func(holds []driver.Hold) []driver.Hold) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.holds = func(ctx context.Context, lanes []int) ([]driver.Hold, error) {
			holds, err := db.Holds(ctx, lanes)
			return change(holds), err
		}
	})
}

func followed(change func(agg *store.Aggregate, from *driver.Cursor, limit *int)) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.follow = func(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
			change(&agg, &from, &limit)
			return db.FetchAggregate(ctx, agg, from, limit)
		}
	})
}

func nextDue(change func(page *driver.Page)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, due: func(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
			page, err := db.Due(ctx, lanes, limit)
			change(&page)
			return page, err
		}}
	}
}

func seekMutants() []mutant {
	return []mutant{
		{"does not know when the next is due", "due", nextDue(func(p *driver.Page) { p.Next = time.Time{} })},
		{"returns a due row as the next one", "due", nextDue(func(p *driver.Page) {
			if len(p.Rows) > 0 {
				p.Next = p.Rows[0].DueAt
			}
		})},
		{"hides dead holds", "holds replay", heldRows(func(hs []driver.Hold) []driver.Hold {
			return slices.DeleteFunc(hs, func(h driver.Hold) bool { return h.Dead })
		})},
		{"hides holds of deferred events", "holds unblock", heldRows(func(hs []driver.Hold) []driver.Hold {
			return slices.DeleteFunc(hs, func(h driver.Hold) bool { return !h.Dead })
		})},
		{"has its own order of holds", "holds", heldRows(func(hs []driver.Hold) []driver.Hold {
			slices.Reverse(hs)
			return hs
		})},
		{"does not say whose holds they are", "holds", heldRows(func(hs []driver.Hold) []driver.Hold {
			for i := range hs {
				hs[i].Aggregate.Tenant = ""
			}
			return hs
		})},
		{"shows the holds of all lanes", "holds", operates(func(db complete, w *worseOperator) {
			w.holds = func(ctx context.Context, _ []int) ([]driver.Hold, error) {
				return db.Holds(ctx, []int{0, 1, 2, 3, 4, 5, 6, 7})
			}
		})},
		{"follows the whole lane", "fetch_aggregate", operates(func(db complete, w *worseOperator) {
			w.follow = func(ctx context.Context, _ store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
				return db.Fetch(ctx, []driver.Cursor{from}, limit)
			}
		})},
		{"follows from the beginning", "fetch_aggregate", followed(func(_ *store.Aggregate, from *driver.Cursor, _ *int) { from.After = 0 })},
		{"follows to the end", "fetch_aggregate", followed(func(_ *store.Aggregate, from *driver.Cursor, _ *int) { from.UpTo = 0 })},
		{"follows without a limit", "fetch_aggregate", followed(func(_ *store.Aggregate, _ *driver.Cursor, limit *int) { *limit = 1000 })},
		{"follows names in lower case", "fetch_aggregate", followed(func(agg *store.Aggregate, _ *driver.Cursor, _ *int) {
			agg.ID = strings.ToLower(agg.ID)
		})},
		{"takes every row for urgent", "fetch_priority", operates(func(db complete, w *worseOperator) { w.urgent = db.Fetch })},
		{"takes no row for urgent", "fetch_priority", operates(func(_ complete, w *worseOperator) {
			w.urgent = func(context.Context, []driver.Cursor, int) (driver.Page, error) { return driver.Page{}, nil }
		})},
		{"lets priority rows overtake their aggregate", "fetch_priority", operates(func(db complete, w *worseOperator) {
			w.urgent = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				page, err := db.Fetch(ctx, from, 1000)
				lanes := make(map[int]int)
				page.Rows = slices.DeleteFunc(page.Rows, func(row store.Row) bool {
					if row.Event.Priority > 0 {
						lanes[row.Lane]++
					}
					return row.Event.Priority == 0 || lanes[row.Lane] > limit
				})
				return page, err
			}
		})},
		{"knows no urgent rows of aggregates", "fetch_priority", operates(func(db complete, w *worseOperator) {
			w.urgent = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				page, err := db.FetchPriority(ctx, from, limit)
				page.Rows = slices.DeleteFunc(page.Rows, func(row store.Row) bool { return row.Event.Ordered() })
				return page, err
			}
		})},
		{"ignores the limit of priority rows", "fetch_priority", operates(func(db complete, w *worseOperator) {
			w.urgent = func(ctx context.Context, from []driver.Cursor, _ int) (driver.Page, error) {
				return db.FetchPriority(ctx, from, 1000)
			}
		})},
		{"takes lanes whose priority rows wait for plain ones", "fetch_priority", operates(func(db complete, w *worseOperator) {
			w.urgent = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				page, err := db.FetchPriority(ctx, from, limit)
				if len(page.Rows) == 0 {
					page.Plain = eventrow.Plain(from, nil, 1)
				}
				return page, err
			}
		})},
		{"does not report drawn seqs", "drawn_seqs", operates(func(_ complete, w *worseOperator) {
			w.writers = func(context.Context) (driver.WriterState, error) { return driver.WriterState{}, nil }
		})},
		{"reads priority rows from the beginning", "fetch_priority", operates(func(db complete, w *worseOperator) {
			w.urgent = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				from = slices.Clone(from)
				for i := range from {
					from[i].After = 0
				}
				return db.FetchPriority(ctx, from, limit)
			}
		})},
	}
}

// finishes breaks the input of Finish.
func finishes(change func(done []waybill.Delivery) []waybill.Delivery) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.finish = func(ctx context.Context, tx memTx, done []waybill.Delivery) error {
			return db.Finish(ctx, tx, change(slices.Clone(done)))
		}
	})
}

// claimed replaces the lease in the claim of every delivery.
func claimed(done []waybill.Delivery, change func(l driver.Lease) driver.Lease) []waybill.Delivery {
	for i, d := range done {
		p := d.Position
		l := change(driver.LeaseOf(&d))
		done[i].Position = waybill.Position{Lane: l.Lane, Epoch: l.Epoch, Seq: p.Seq}
		done[i].Claim = &driver.Claim{Token: l.Token, History: driver.ClaimOf(&d).History}
	}
	return done
}

// settleInstead settles deliveries in its own transaction instead of finishing
// them in the caller's.
func settleInstead(db complete, lost func(held bool) error) func(context.Context, memTx, []waybill.Delivery) error {
	return func(ctx context.Context, _ memTx, done []waybill.Delivery) error {
		for _, d := range done {
			p := d.Position
			settled, err := db.Settle(ctx, driver.Settlement{
				Leases: []driver.Lease{driver.LeaseOf(&d)},
				Done:   []driver.Result{{Lane: p.Lane, ID: d.ID}}, History: driver.ClaimOf(&d).History,
			})
			if err = errors.Join(err, lost(len(settled.Held) > 0)); err != nil {
				return err
			}
		}
		return nil
	}
}

func finishMutants() []mutant {
	return []mutant{
		{"finishes outside the transaction", "effect_and_settlement_together", operates(func(db complete, w *worseOperator) {
			w.finish = settleInstead(db, func(held bool) error {
				if held {
					return nil
				}
				return waybill.ErrLeaseLost
			})
		})},
		{"finishes nothing", "effect_and_settlement_together", operates(func(_ complete, w *worseOperator) {
			w.finish = func(context.Context, memTx, []waybill.Delivery) error { return nil }
		})},
		{"finishes only the first", "effect_and_settlement_together", finishes(func(done []waybill.Delivery) []waybill.Delivery { return done[:min(1, len(done))] })},
		{"always keeps the history of finished events", "effect_and_settlement_together", finishes(func(done []waybill.Delivery) []waybill.Delivery {
			for i := range done {
				done[i].Claim = &driver.Claim{Token: driver.ClaimOf(&done[i]).Token, History: true}
			}
			return done
		})},
		{"finishes held deliveries and skips the rest", "effect_and_settlement_together", operates(func(db complete, w *worseOperator) {
			w.finish = func(ctx context.Context, tx memTx, done []waybill.Delivery) error {
				var lost error
				for _, d := range done {
					if err := db.Finish(ctx, tx, []waybill.Delivery{d}); err != nil {
						lost = err
					}
				}
				return lost
			}
		})},
		{"returns another error for a lost lane", "effect_and_settlement_together", operates(func(db complete, w *worseOperator) {
			w.finish = func(ctx context.Context, tx memTx, done []waybill.Delivery) error {
				if err := db.Finish(ctx, tx, done); err != nil {
					return errors.New("lost")
				}
				return nil
			}
		})},
		{"finishes without a fence", "effect_and_settlement_together", func(db complete) complete {
			p, w := watch(db)
			w.finish = func(ctx context.Context, tx memTx, done []waybill.Delivery) error {
				return db.Finish(ctx, tx, claimed(slices.Clone(done), func(l driver.Lease) driver.Lease { return p.of([]driver.Lease{l})[0] }))
			}
			return w
		}},
		{"looks at the token of a claim only", "effect_and_settlement_together", func(db complete) complete {
			p, w := watch(db)
			w.finish = func(ctx context.Context, tx memTx, done []waybill.Delivery) error {
				return db.Finish(ctx, tx, claimed(slices.Clone(done), func(l driver.Lease) driver.Lease {
					l.Epoch = p.of([]driver.Lease{l})[0].Epoch
					return l
				}))
			}
			return w
		}},
	}
}

func counted(change func(s *store.Stats)) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.stats = func(ctx context.Context) (store.Stats, error) {
			s, err := db.Stats(ctx)
			change(&s)
			return s, err
		}
	})
}

// filtered breaks the filter of Count and List.
func filtered(change func(f *store.Filter)) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.count = func(ctx context.Context, state store.State, f store.Filter) (int64, error) {
			change(&f)
			return db.Count(ctx, state, f)
		}
		w.list = func(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error) {
			change(&f)
			return db.List(ctx, state, f, after, limit)
		}
	})
}

func found(change func(r *store.Record)) tamper {
	return operates(func(db complete, w *worseOperator) {
		w.find = func(ctx context.Context, id waybill.ID) ([]store.Record, error) {
			recs, err := db.Find(ctx, id)
			for i := range recs {
				change(&recs[i])
			}
			return recs, err
		}
	})
}

// eachNode changes the nodes of Stats.
func eachNode(change func(n *store.Node)) tamper {
	return counted(func(s *store.Stats) {
		for i := range s.Nodes {
			change(&s.Nodes[i])
		}
	})
}

func browseMutants() []mutant {
	return []mutant{
		{"counts failed events as scheduled", "stats", counted(func(s *store.Stats) { s.Scheduled, s.Failed = s.Scheduled+s.Failed, 0 })},
		{"does not know the oldest", "stats", counted(func(s *store.Stats) { s.Oldest = s.Now })},
		{"counts no holds", "stats", counted(func(s *store.Stats) { s.Holding = 0 })},
		{"forgets the highest attempts", "stats", counted(func(s *store.Stats) { s.MaxAttempts = 0 })},
		{"does not report the live nodes", "stats", counted(func(s *store.Stats) { s.Nodes = nil })},
		{"has no reports", "node_reports", eachNode(func(n *store.Node) { n.Report = "" })},
		{"cuts reports", "node_reports", eachNode(func(n *store.Node) { n.Report = n.Report[:min(len(n.Report), 4000)] })},
		{"does not know the end of leases", "node_reports", eachNode(func(n *store.Node) { n.Expires = n.Expires.Add(-time.Minute) })},
		{"sends a heartbeat to read the members", "stats", func(db complete) complete {
			w := &worse{complete: db}
			w.stats = func(ctx context.Context) (store.Stats, error) {
				s, err := db.Stats(ctx)
				if err == nil {
					s.Membership, err = db.Heartbeat(ctx, store.Node{ID: waybill.NewID(), Relay: relayName}, time.Minute)
				}
				return s, err
			}
			return w
		}},
		{"ignores the tenant of a filter", "count_and_list", filtered(func(f *store.Filter) { f.TenantID = "" })},
		{"ignores the aggregate type of a filter", "count_and_list", filtered(func(f *store.Filter) { f.AggregateType = "" })},
		{"filters in lower case", "count_and_list", filtered(func(f *store.Filter) { f.AggregateID = strings.ToLower(f.AggregateID) })},
		{"ignores the begin of a filter", "count_and_list", filtered(func(f *store.Filter) { f.Since = time.Time{} })},
		{"ignores the end of a filter", "count_and_list", filtered(func(f *store.Filter) { f.Until = time.Time{} })},
		{"includes the end of a filter", "count_and_list", filtered(func(f *store.Filter) { f.Until = f.Until.Add(time.Microsecond) })},
		{"ignores the error of a filter", "count_and_list", filtered(func(f *store.Filter) { f.Error = "" })},
		{"ignores the correlation id of a filter", "count_and_list", filtered(func(f *store.Filter) { f.CorrelationID = "" })},
		{"ignores the cause of a filter", "causes", filtered(func(f *store.Filter) { f.Cause = "" })},
		{"ignores Holding", "count_and_list", filtered(func(f *store.Filter) { f.Holding = false })},
		{"ignores Failed", "count_and_list", filtered(func(f *store.Filter) { f.Failed = false })},
		{"starts every page anew", "count_and_list", operates(func(db complete, w *worseOperator) {
			w.list = func(ctx context.Context, state store.State, f store.Filter, _ int64, limit int) ([]store.Record, error) {
				return db.List(ctx, state, f, 0, limit)
			}
		})},
		{"finds nothing", "find", operates(func(_ complete, w *worseOperator) {
			w.find = func(context.Context, waybill.ID) ([]store.Record, error) { return nil, nil }
		})},
		{"forgets when it ended", "find", found(func(r *store.Record) { r.EndedAt = time.Time{} })},
		{"forgets what went wrong", "find replay", found(func(r *store.Record) { r.LastError = "" })},
	}
}

func mendMutants() []mutant {
	each := func(step func(db complete, ctx context.Context, id waybill.ID) (store.Replayed, error)) tamper {
		return operates(func(db complete, w *worseOperator) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				var all store.Replayed
				for _, id := range ids {
					one, err := step(db, ctx, id)
					if err != nil {
						return all, err
					}
					all.IDs, all.Refused = append(all.IDs, one.IDs...), append(all.Refused, one.Refused...)
				}
				return all, nil
			}
		})
	}
	return []mutant{
		{"replays nothing", "replay", operates(func(_ complete, w *worseOperator) {
			w.replay = func(context.Context, []waybill.ID) (store.Replayed, error) { return store.Replayed{}, nil }
		})},
		{"replays each at a time of its own, in any order", "replay", each(func(db complete, ctx context.Context, id waybill.ID) (store.Replayed, error) {
			return db.Replay(ctx, []waybill.ID{id})
		})},
		{"unblocks replayed events", "replay", each(func(db complete, ctx context.Context, id waybill.ID) (store.Replayed, error) {
			replayed, err := db.Replay(ctx, []waybill.ID{id})
			_, _ = db.Unblock(ctx, replayed.IDs)
			return replayed, err
		})},
		{"does not report the holder of the key", "replay", operates(func(db complete, w *worseOperator) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				replayed, err := db.Replay(ctx, ids)
				replayed.Refused = nil
				return replayed, err
			}
		})},
		{"reports all events as replayed", "replay", operates(func(db complete, w *worseOperator) {
			w.replay = func(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
				replayed, err := db.Replay(ctx, ids)
				replayed.IDs = ids
				return replayed, err
			}
		})},
		{"discards nothing", "discard", operates(func(_ complete, w *worseOperator) {
			w.discard = func(_ context.Context, ids []waybill.ID) ([]waybill.ID, error) { return ids, nil }
		})},
		{"forgets that discarded events were committed", "discard", func(db complete) complete {
			return &worse{complete: db, committed: func(ctx context.Context, id waybill.ID) (bool, error) {
				yes, _ := db.Committed(ctx, id)
				return yes, nil
			}}
		}},
		{"unblocks nothing", "unblock", operates(func(_ complete, w *worseOperator) {
			w.unblock = func(context.Context, []waybill.ID) ([]waybill.ID, error) { return nil, nil }
		})},
		{"discards to unblock", "unblock", operates(func(db complete, w *worseOperator) {
			w.unblock = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				done, err := db.Unblock(ctx, ids)
				_, _ = db.Discard(ctx, ids)
				return done, err
			}
		})},
		{"unblocks everything", "unblock", operates(func(db complete, w *worseOperator) {
			w.unblock = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				holds, err := db.Holds(ctx, []int{0, 1, 2, 3, 4, 5, 6, 7})
				if err != nil || len(ids) == 0 {
					return nil, err
				}
				for _, h := range holds {
					ids = append(ids, h.ID)
				}
				return db.Unblock(ctx, ids)
			}
		})},
	}
}

func keepMutants() []mutant {
	purges := func(change func(state *store.State, age *time.Duration, limit *int)) tamper {
		return operates(func(db complete, w *worseOperator) {
			w.purge = func(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
				change(&state, &age, &limit)
				return db.Purge(ctx, state, age, limit)
			}
		})
	}
	return []mutant{
		{"purges everything at once", "purge_respects_retention", purges(func(_ *store.State, _ *time.Duration, limit *int) { *limit = 1000 })},
		{"purges whatever its age", "purge_respects_retention", purges(func(_ *store.State, age *time.Duration, _ *int) { *age = 0 })},
		{"purges the wrong table", "purge_respects_retention", purges(func(s *store.State, _ *time.Duration, _ *int) {
			switch *s {
			case store.Dead:
				*s = store.Delivered
			case store.Delivered:
				*s = store.Dead
			case store.Ready, store.Delayed:
			}
		})},
		{"reports purged events as never written", "purge_respects_retention purge_written_and_make_ready", func(db complete) complete {
			return &worse{complete: db, committed: func(ctx context.Context, id waybill.ID) (bool, error) {
				yes, _ := db.Committed(ctx, id)
				return yes, nil
			}}
		}},
		{"purges under a relay", "purge_written_and_make_ready", func(db complete) complete {
			w := &worse{complete: db}
			w.purgeWritten = func(ctx context.Context, age time.Duration, limit int) (int, error) {
				s, err := db.Stats(ctx)
				if err != nil {
					return 0, err
				}
				for _, n := range s.Nodes { // as if it did not check
					_ = db.Leave(ctx, n)
				}
				return db.PurgeWritten(ctx, age, limit)
			}
			return w
		}},
		{"reports too many ready events", "purge_written_and_make_ready", operates(func(db complete, w *worseOperator) {
			w.makeReady = func(ctx context.Context, limit int) (int, error) {
				n, err := db.MakeReady(ctx, limit)
				return n + 1, err
			}
		})},
		{"makes ready all that is due", "purge_written_and_make_ready", operates(func(db complete, w *worseOperator) {
			w.makeReady = func(ctx context.Context, _ int) (int, error) { return db.MakeReady(ctx, 1000) }
		})},
		{"makes ready under a relay", "purge_written_and_make_ready", func(db complete) complete {
			w := &worse{complete: db}
			w.makeReady = func(ctx context.Context, limit int) (int, error) {
				s, err := db.Stats(ctx)
				if err != nil {
					return 0, err
				}
				for _, n := range s.Nodes { // as if it did not check
					_ = db.Leave(ctx, n)
				}
				return db.MakeReady(ctx, limit)
			}
			return w
		}},
		{"purges all that was written", "purge_written_and_make_ready", operates(func(db complete, w *worseOperator) {
			w.purgeWritten = func(ctx context.Context, age time.Duration, _ int) (int, error) {
				return db.PurgeWritten(ctx, age, 1000)
			}
		})},
		{"purges the history when it tidies", "tidy", operates(func(db complete, w *worseOperator) {
			w.tidy = func(ctx context.Context, _ time.Duration) error {
				_, err := db.Purge(ctx, store.Delivered, 0, 1000)
				return err
			}
		})},
		{"refuses to tidy twice", "tidy", func(db complete) complete {
			w := &worse{complete: db}
			tidied := make(chan struct{}, 1)
			w.tidy = func(ctx context.Context, age time.Duration) error {
				select {
				case tidied <- struct{}{}:
					return db.Tidy(ctx, age)
				default:
					return errors.New("tidied")
				}
			}
			return w
		}},
		{"keeps the number of lanes", "set_lanes", operates(func(_ complete, w *worseOperator) {
			w.setLanes = func(context.Context, int) error { return nil }
		})},
		{"gives one lane more", "set_lanes", operates(func(db complete, w *worseOperator) {
			w.setLanes = func(ctx context.Context, n int) error { return db.SetLanes(ctx, n+1) }
		})},
		{"changes lanes under a relay", "set_lanes", func(db complete) complete {
			w := &worse{complete: db}
			w.setLanes = func(ctx context.Context, n int) error {
				s, err := db.Stats(ctx)
				if err != nil {
					return err
				}
				for _, n := range s.Nodes {
					_ = db.Leave(ctx, n)
				}
				return db.SetLanes(ctx, n)
			}
			return w
		}},
	}
}
