package drivertest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// diversions breaks the diversions of a settlement.
func diversions(change func(d *driver.Diversion)) tamper {
	return diverts(func(s *driver.Settlement) {
		for i := range s.Divert {
			change(&s.Divert[i])
		}
	})
}

// diverts breaks settlements with diversions.
func diverts(change func(s *driver.Settlement)) tamper {
	return settles(func(s *driver.Settlement) {
		if s.Divert = slices.Clone(s.Divert); len(s.Divert) > 0 {
			change(s)
		}
	})
}

// afterDivert does more after a settlement with diversions.
func afterDivert(more func(ctx context.Context, db complete, s driver.Settlement, out driver.Settled)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
			out, err := db.Settle(ctx, s)
			if err == nil && len(s.Divert) > 0 {
				more(ctx, db, s, out)
			}
			return out, err
		}}
	}
}

// refillOne copies an event that was delivered to a backlog.
func refillOne(ctx context.Context, db complete, number int, id waybill.ID) {
	recs, _ := db.Find(ctx, id)
	for _, rec := range recs {
		before := id
		before[15]--
		_, _ = db.Backlog(number).Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{At: rec.EndedAt, ID: before}, 1)
	}
}

func divertMutants() []mutant {
	return []mutant{
		{"diverts nothing", "divert", diverts(func(s *driver.Settlement) { s.Divert = nil })},
		{"diverts to one destination", "divert", diverts(func(s *driver.Settlement) {
			seen := map[waybill.ID]bool{}
			s.Divert = slices.DeleteFunc(s.Divert, func(d driver.Diversion) bool { defer func() { seen[d.ID] = true }(); return seen[d.ID] })
		})},
		{"diverts all that is done", "divert", diverts(func(s *driver.Settlement) {
			for _, r := range s.Done {
				s.Divert = append(s.Divert, driver.Diversion{Destination: s.Divert[0].Destination, ID: r.ID})
			}
		})},
		{"diverts a hundred at most", "divert", diverts(func(s *driver.Settlement) { s.Divert = s.Divert[:min(len(s.Divert), 1000)] })},
		{"settles whatever is diverted", "divert", diverts(func(s *driver.Settlement) {
			for _, d := range s.Divert {
				for _, r := range s.Retry {
					if r.ID == d.ID {
						s.Done = append(s.Done, r)
					}
				}
			}
		})},
		{"forgets the attempts of a diversion", "divert", diversions(func(d *driver.Diversion) { d.Attempts = 0 })},
		{"counts a diversion as an attempt", "divert", diversions(func(d *driver.Diversion) { d.Attempts++ })},
		{"forgets the delay of a diversion", "divert", diversions(func(d *driver.Diversion) { d.Delay = 0 })},
		{"gives every diversion a due time", "divert", diversions(func(d *driver.Diversion) { d.Delay = max(d.Delay, 1) })},
		{"takes seconds for minutes", "divert", diversions(func(d *driver.Diversion) { d.Delay /= 60 })},
		{"forgets that a failure is final", "divert", diversions(func(d *driver.Diversion) { d.Final = false })},
		{"takes every failure for final", "divert", diversions(func(d *driver.Diversion) { d.Final = d.Final || d.Attempts > 0 })},
		{"forgets the error of a diversion", "divert", diversions(func(d *driver.Diversion) { d.Error = "" })},
		{"cuts errors of diversions early", "divert", diversions(func(d *driver.Diversion) { d.Error = d.Error[:min(len(d.Error), 3000)] })},
		{"diverts to the next destination", "divert", diversions(func(d *driver.Diversion) { d.Destination++ })},
		{"keeps no history of what it diverts", "divert", diverts(func(s *driver.Settlement) { s.History = false })},
		{"keeps a history of what it diverts", "divert", diverts(func(s *driver.Settlement) { s.History = true })},
		{"diverts without a fence", "divert", func(db complete) complete {
			p, w := watch(db)
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				if len(s.Divert) > 0 {
					s.Leases = p.of(s.Leases)
				}
				return db.Settle(ctx, s)
			}
			return w
		}},
		{"defers what it diverts", "divert", afterDivert(func(ctx context.Context, db complete, s driver.Settlement, _ driver.Settled) {
			for _, d := range s.Divert {
				recs, _ := db.Backlog(d.Destination).Find(ctx, d.ID)
				for _, rec := range recs {
					res := driver.Result{Lane: rec.Lane, ID: rec.ID, Attempts: d.Attempts, Delay: d.Delay, Error: d.Error, Replay: rec.Replay}
					_, _ = db.Backlog(d.Destination).Settle(ctx, driver.Settlement{Leases: s.Leases, Retry: []driver.Result{res}})
				}
			}
		})},
		{"diverts again when a settlement is repeated", "divert", afterDivert(func(ctx context.Context, db complete, s driver.Settlement, out driver.Settled) {
			for _, d := range s.Divert {
				if !slices.Contains(out.Moved, d.ID) {
					refillOne(ctx, db, d.Destination, d.ID)
				}
			}
		})},
		{"diverts one event after another", "divert", func(db complete) complete {
			return &worse{complete: db, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				if len(s.Divert) == 0 {
					return db.Settle(ctx, s)
				}
				late := s.Divert
				s.Divert = nil
				out, err := db.Settle(ctx, s)
				for _, d := range late {
					refillOne(ctx, db, d.Destination, d.ID)
				}
				return out, err
			}}
		}},
		{"lets the outbox discard in backlogs", "divert", operates(func(db complete, w *worseOperator) {
			w.discard = func(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
				all, _ := db.AddDestinations(ctx)
				for _, d := range all {
					_, _ = db.Backlog(d.Number).Discard(ctx, ids)
				}
				return db.Discard(ctx, ids)
			}
		})},
		{"lets the outbox purge backlogs", "divert", operates(func(db complete, w *worseOperator) {
			w.purge = func(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
				all, _ := db.AddDestinations(ctx)
				for _, d := range all {
					_, _ = db.Backlog(d.Number).PurgeDead(ctx, age, limit)
				}
				return db.Purge(ctx, state, age, limit)
			}
		})},
		{"counts backlogs in the outbox", "divert", operates(func(db complete, w *worseOperator) {
			w.stats = func(ctx context.Context) (store.Stats, error) {
				s, err := db.Stats(ctx)
				all, _ := db.AddDestinations(ctx)
				for _, d := range all {
					more, _ := db.Backlog(d.Number).Stats(ctx)
					s.Ready += more.Ready
				}
				return s, err
			}
		})},
		{"holds a key for what it diverted", "divert", keepsKeys},
	}
}

// keepsKeys absorbs events with the key of an event that was diverted.
func keepsKeys(db complete) complete {
	var mu sync.Mutex
	kept := map[string]waybill.ID{}
	w := &worse{complete: db}
	w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, d := range s.Divert {
			recs, _ := db.Find(ctx, d.ID)
			for _, rec := range recs {
				kept[rec.Event.DedupKey] = rec.ID
			}
		}
		return db.Settle(ctx, s)
	}
	w.append = func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
		mu.Lock()
		defer mu.Unlock()
		placed, err := db.Append(ctx, tx, evs)
		for i := range placed {
			if holder, ok := kept[evs[i].DedupKey]; ok && evs[i].DedupKey != "" {
				placed[i].ID = holder
			}
		}
		return placed, err
	}
	return w
}
