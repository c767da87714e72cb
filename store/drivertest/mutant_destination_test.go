package drivertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destined breaks one of the methods of worseRegistry.
func destined(change func(db complete, w *worseRegistry)) tamper {
	return func(db complete) complete {
		w := &worse{complete: db}
		change(db, &w.worseRegistry)
		return w
	}
}

// named breaks the names that the registry gets.
func named(change func(name string) string) tamper {
	return destined(func(db complete, w *worseRegistry) {
		w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
			changed := make([]string, len(names))
			for i, name := range names {
				changed[i] = change(name)
			}
			return db.AddDestinations(ctx, changed...)
		}
	})
}

// listed breaks the list of destinations.
func listed(change func(all []store.Destination) []store.Destination) tamper {
	return destined(func(db complete, w *worseRegistry) {
		w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
			all, err := db.AddDestinations(ctx, names...)
			return change(all), err
		}
	})
}

// withoutNodes lets all nodes leave, as if they were not checked.
func withoutNodes(ctx context.Context, db complete) {
	s, _ := db.Stats(ctx)
	for _, n := range s.Nodes {
		_ = db.Leave(ctx, n)
	}
}

func registryMutants() []mutant {
	return []mutant{
		{"folds names of destinations", "destinations", named(strings.ToLower)},
		{"pads names of destinations", "destinations", named(func(name string) string { return strings.TrimRight(name, " ") })},
		{"cuts names of destinations", "destinations", named(func(name string) string { return name[:min(len(name), driver.MaxDestinationName)] })},
		{"names a destination that has no name", "destinations", named(func(name string) string { return cmp.Or(name, "default") })},
		{"lists destinations by name", "destinations", listed(func(all []store.Destination) []store.Destination {
			slices.SortFunc(all, func(a, b store.Destination) int { return strings.Compare(a.Name, b.Name) })
			return all
		})},
		{"counts destinations from 0", "destinations divert", listed(func(all []store.Destination) []store.Destination {
			for i := range all {
				all[i].Number--
			}
			return all
		})},
		{"does not say since when there is a destination", "destinations", listed(func(all []store.Destination) []store.Destination {
			for i := range all {
				all[i].CreatedAt = time.Time{}
			}
			return all
		})},
		{"registers a destination anew", "destinations", listed(func(all []store.Destination) []store.Destination {
			for i := range all {
				all[i].CreatedAt = time.Now().UTC().Truncate(time.Microsecond)
			}
			return all
		})},
		{"returns only the names that are asked for", "destinations", destined(func(db complete, w *worseRegistry) {
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				all, err := db.AddDestinations(ctx, names...)
				return slices.DeleteFunc(all, func(d store.Destination) bool { return len(names) > 0 && !slices.Contains(names, d.Name) }), err
			}
		})},
		{"registers as many as there are numbers", "destinations", destined(func(db complete, w *worseRegistry) {
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				all, err := db.AddDestinations(ctx)
				for _, name := range names {
					if more, one := db.AddDestinations(ctx, name); one == nil {
						all = more
					} else {
						err = one
					}
				}
				return all, err
			}
		})},
		{"allows fewer destinations", "destinations", destined(func(db complete, w *worseRegistry) {
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				if all, err := db.AddDestinations(ctx); err != nil || len(all)+len(names) > 31 {
					return nil, errors.Join(err, driver.ErrTooManyDestinations)
				}
				return db.AddDestinations(ctx, names...)
			}
		})},
		{"does not use a number again", "destinations", func(db complete) complete {
			w := &worse{complete: db}
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				n, err := db.RemoveDestination(ctx, name)
				if err == nil {
					_, err = db.AddDestinations(ctx, "removed "+name)
				}
				return n, err
			}
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				all, err := db.AddDestinations(ctx, names...)
				return slices.DeleteFunc(all, func(d store.Destination) bool { return strings.HasPrefix(d.Name, "removed") }), err
			}
			return w
		}},
		{"pauses again", "destinations", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(ctx context.Context, name, reason string) (bool, error) {
				_, _ = db.ResumeDestination(ctx, name)
				return db.PauseDestination(ctx, name, reason)
			}
		})},
		{"does not know that a destination is paused", "destinations", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(ctx context.Context, name, reason string) (bool, error) {
				_, err := db.PauseDestination(ctx, name, reason)
				return err == nil, err
			}
		})},
		{"forgets why", "destinations", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(ctx context.Context, name, _ string) (bool, error) { return db.PauseDestination(ctx, name, "") }
		})},
		{"cuts the reason", "destinations", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(ctx context.Context, name, reason string) (bool, error) {
				return db.PauseDestination(ctx, name, reason[:min(len(reason), 3998)])
			}
		})},
		{"pauses nothing", "destinations", destined(func(_ complete, w *worseRegistry) {
			w.pauseDestination = func(context.Context, string, string) (bool, error) { return false, nil }
		})},
		{"remembers why after the pause", "destinations", func(db complete) complete {
			reasons := map[string]string{}
			w := &worse{complete: db}
			w.pauseDestination = func(ctx context.Context, name, reason string) (bool, error) {
				reasons[name] = reason
				return db.PauseDestination(ctx, name, reason)
			}
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				all, err := db.AddDestinations(ctx, names...)
				for i := range all {
					all[i].Reason = reasons[all[i].Name]
				}
				return all, err
			}
			return w
		}},
		{"resumes nothing", "destinations", destined(func(_ complete, w *worseRegistry) {
			w.resumeDestination = func(context.Context, string) (bool, error) { return true, nil }
		})},
		{"resumes all", "destinations", destined(func(db complete, w *worseRegistry) {
			w.resumeDestination = func(ctx context.Context, name string) (bool, error) {
				ok, err := db.ResumeDestination(ctx, name)
				all, _ := db.AddDestinations(ctx)
				for _, d := range all {
					_, _ = db.ResumeDestination(ctx, d.Name)
				}
				return ok, err
			}
		})},
		{"pauses and resumes what is not registered", "destinations", destined(func(db complete, w *worseRegistry) {
			w.pauseDestination = func(ctx context.Context, name, reason string) (bool, error) {
				ok, err := db.PauseDestination(ctx, name, reason)
				if errors.Is(err, driver.ErrNoDestination) {
					err = nil
				}
				return ok, err
			}
		})},
		{"does not probe", "destinations", destined(func(_ complete, w *worseRegistry) {
			w.probeDestination = func(context.Context, string) error { return nil }
		})},
		{"probes once", "destinations", func(db complete) complete {
			probed := map[string]bool{}
			w := &worse{complete: db}
			w.probeDestination = func(ctx context.Context, name string) error {
				if probed[name] {
					return nil
				}
				probed[name] = true
				return db.ProbeDestination(ctx, name)
			}
			return w
		}},
		{"probes all", "destinations", destined(func(db complete, w *worseRegistry) {
			w.probeDestination = func(ctx context.Context, name string) error {
				all, _ := db.AddDestinations(ctx)
				for _, d := range all {
					_ = db.ProbeDestination(ctx, d.Name)
				}
				return db.ProbeDestination(ctx, name)
			}
		})},
		{"removes a destination under a relay", "destinations", destined(func(db complete, w *worseRegistry) {
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				withoutNodes(ctx, db)
				return db.RemoveDestination(ctx, name)
			}
		})},
		{"does not count the removed rows", "destinations", destined(func(db complete, w *worseRegistry) {
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				_, err := db.RemoveDestination(ctx, name)
				return 0, err
			}
		})},
		{"leaves the rows of a removed destination behind", "destinations", func(db complete) complete {
			w := &worse{complete: db}
			left := map[int]bool{}
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				all, _ := db.AddDestinations(ctx)
				n, err := db.RemoveDestination(ctx, name)
				for _, d := range all {
					left[d.Number] = left[d.Number] || d.Name == name && n > 0
				}
				return n, err
			}
			w.addDestinations = func(ctx context.Context, names ...string) ([]store.Destination, error) {
				all, err := db.AddDestinations(ctx, names...)
				for _, d := range all {
					if left[d.Number] {
						_, _ = db.Backlog(d.Number).Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 100)
					}
				}
				return all, err
			}
			return w
		}},
		{"removes the history with a destination", "destinations", destined(func(db complete, w *worseRegistry) {
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				_, _ = db.Purge(ctx, store.Delivered, 0, 1000)
				return db.RemoveDestination(ctx, name)
			}
		})},
		{"removes rows of all destinations", "destinations", destined(func(db complete, w *worseRegistry) {
			w.removeDestination = func(ctx context.Context, name string) (int64, error) {
				n, err := db.RemoveDestination(ctx, name)
				if err != nil {
					return n, err
				}
				all, err := db.AddDestinations(ctx)
				for _, d := range all {
					_, _ = db.Backlog(d.Number).PurgeDead(ctx, 0, 1000)
				}
				return n, err
			}
		})},
	}
}

// restorers breaks Restored.
func restorers(change func(ctx context.Context, db complete, force bool) error) tamper {
	return destined(func(db complete, w *worseRegistry) {
		w.restored = func(ctx context.Context, force bool) error { return change(ctx, db, force) }
	})
}

func restoreMutants() []mutant {
	return []mutant{
		{"restores nothing", "restored", restorers(func(ctx context.Context, db complete, force bool) error {
			s, err := db.Stats(ctx)
			if err == nil && len(s.Nodes) > 0 && !force {
				return store.ErrRelayLive
			}
			return err
		})},
		{"restores under a relay", "restored", restorers(func(ctx context.Context, db complete, _ bool) error { return db.Restored(ctx, true) })},
		{"cannot be forced to restore", "restored", restorers(func(ctx context.Context, db complete, _ bool) error { return db.Restored(ctx, false) })},
		{"restores lanes as clean", "restored", func(db complete) complete {
			w := &worse{complete: db}
			w.acquire = func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
				got, err := db.Acquire(ctx, n, lanes, window)
				for i := range got {
					got[i].Unclean = false
				}
				return got, err
			}
			return w
		}},
		{"raises epochs only", "restored", func(db complete) complete {
			w := &worse{complete: db}
			w.fetch = func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				page, err := db.Fetch(ctx, from, limit)
				for i := range page.Rows {
					page.Rows[i].Seq %= driver.RestoreSeqs
				}
				return page, err
			}
			return w
		}},
		{"raises seqs only", "restored", operates(func(db complete, w *worseOperator) {
			w.stats = func(ctx context.Context) (store.Stats, error) {
				s, err := db.Stats(ctx)
				for i := range s.Lanes {
					s.Lanes[i].Epoch %= driver.RestoreEpochs
				}
				return s, err
			}
		})},
		{"changes lanes although it refuses", "restored", restorers(func(ctx context.Context, db complete, force bool) error {
			err := db.Restored(ctx, force)
			if errors.Is(err, store.ErrRelayLive) {
				_ = db.Restored(ctx, true)
			}
			return err
		})},
	}
}
