package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// fetches breaks the cursors and the limit of Fetch and Sweep.
func fetches(change func(c *driver.Cursor, limit *int)) tamper {
	return func(db complete) complete {
		changed := func(from []driver.Cursor, limit int) ([]driver.Cursor, int) {
			from = slices.Clone(from)
			for i := range from {
				change(&from[i], &limit)
			}
			return from, limit
		}
		return &worse{
			complete: db,
			fetch: func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				from, limit = changed(from, limit)
				return db.Fetch(ctx, from, limit)
			},
			sweep: func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
				from, limit = changed(from, limit)
				return db.Sweep(ctx, from, limit)
			},
		}
	}
}

func readMutants() []mutant {
	reversed := func(page driver.Page, err error) (driver.Page, error) {
		slices.Reverse(page.Rows)
		return page, err
	}
	return []mutant{
		{"reads from the cursor on, not after it", "fetch", fetches(func(c *driver.Cursor, _ *int) { c.After = max(c.After-1, 0) })},
		{"does not know where to stop", "fetch", fetches(func(c *driver.Cursor, _ *int) { c.UpTo = 0 })},
		{"stops before the end", "fetch sweep", fetches(func(c *driver.Cursor, _ *int) { c.UpTo = max(c.UpTo-1, 0) })},
		{"has no limit", "fetch", fetches(func(_ *driver.Cursor, limit *int) { *limit = 1000 })},
		{"reads one lane for all", "fetch", fetches(func(c *driver.Cursor, _ *int) { c.Lane = 3 })},
		{"reads backwards", "fetch sweep", func(db complete) complete {
			return &worse{complete: db, fetch: func(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
				return reversed(db.Fetch(ctx, from, limit))
			}}
		}},
		{"sweeps from half the way", "sweep", func(db complete) complete {
			return &worse{complete: db, sweep: func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
				from = slices.Clone(from)
				for i := range from {
					from[i].After = max(from[i].After, from[i].UpTo/2)
				}
				return db.Sweep(ctx, from, limit)
			}}
		}},
		{"forgets the tenant of an unordered event", "sweep", func(db complete) complete {
			return &worse{complete: db, sweep: func(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
				refs, err := db.Sweep(ctx, from, limit)
				for i := range refs {
					refs[i].Tenant = refs[i].Aggregate.Tenant
				}
				return refs, err
			}}
		}},
		{"returns pages of any size", "page_size", func(db complete) complete {
			return &worse{complete: db, load: func(ctx context.Context, keys []store.Key) (driver.Page, error) {
				half := len(keys) / 2
				p, err := db.Load(ctx, keys[:half])
				more, moreErr := db.Load(ctx, keys[half:])
				p.Rows = append(p.Rows, more.Rows...)
				return p, errors.Join(err, moreErr)
			}}
		}},
		{"loads backwards", "load", func(db complete) complete {
			return &worse{complete: db, load: func(ctx context.Context, keys []store.Key) (driver.Page, error) {
				return reversed(db.Load(ctx, keys))
			}}
		}},
		{"loads a thousand at most", "load", func(db complete) complete {
			return &worse{complete: db, load: func(ctx context.Context, keys []store.Key) (driver.Page, error) {
				return db.Load(ctx, keys[:min(len(keys), 1000)])
			}}
		}},
		{"returns due rows in another order", "due", func(db complete) complete {
			return &worse{complete: db, due: func(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
				return reversed(db.Due(ctx, lanes, limit))
			}}
		}},
		{"ignores the limit of due rows", "due", func(db complete) complete {
			return &worse{complete: db, due: func(ctx context.Context, lanes []int, _ int) (driver.Page, error) {
				return db.Due(ctx, lanes, 1000)
			}}
		}},
		{"returns due rows of any lane", "due", func(db complete) complete {
			return &worse{complete: db, due: func(ctx context.Context, _ []int, limit int) (driver.Page, error) {
				return db.Due(ctx, []int{0, 1, 2, 3, 4, 5, 6, 7}, limit)
			}}
		}},
		{"shows nothing that is due", "due settle_retry delays", func(db complete) complete {
			return &worse{complete: db, due: func(context.Context, []int, int) (driver.Page, error) { return driver.Page{Now: time.Now()}, nil }}
		}},
	}
}

// leases breaks the result of Acquire.
func leases(change func(l *driver.Lease)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, acquire: func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
			got, err := db.Acquire(ctx, n, lanes, window)
			for i := range got {
				change(&got[i])
			}
			return got, err
		}}
	}
}

// present tracks the current leases.
type present struct {
	mu     sync.Mutex
	leases map[int]driver.Lease
}

func watch(db complete) (*present, *worse) {
	p := &present{leases: map[int]driver.Lease{}}
	return p, &worse{complete: db, acquire: func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
		got, err := db.Acquire(ctx, n, lanes, window)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range got {
			p.leases[l.Lane] = l
		}
		return got, err
	}}
}

// of returns the current leases of the lanes of the given leases.
func (p *present) of(leases []driver.Lease) []driver.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	var held []driver.Lease
	for _, l := range leases {
		held = append(held, p.leases[l.Lane])
	}
	return held
}

func laneMutants() []mutant {
	return []mutant{
		{"lets every relay in", "one_relay_per_outbox", func(db complete) complete {
			return &worse{complete: db, heartbeat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				n.Relay = relayName
				return db.Heartbeat(ctx, n, lease)
			}}
		}},
		{"keeps every node forever", "membership takeover_from_a_dead_node", func(db complete) complete {
			return &worse{complete: db, heartbeat: func(ctx context.Context, n store.Node, _ time.Duration) (store.Membership, error) {
				return db.Heartbeat(ctx, n, time.Hour)
			}}
		}},
		{"does not count nodes", "membership", func(db complete) complete {
			return &worse{complete: db, heartbeat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				m, err := db.Heartbeat(ctx, n, lease)
				m.Nodes = slices.DeleteFunc(m.Nodes, func(other store.Node) bool { return other.ID != n.ID })
				return m, err
			}}
		}},
		{"takes every owner for live", "membership", func(db complete) complete {
			return &worse{complete: db, heartbeat: func(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
				m, err := db.Heartbeat(ctx, n, lease)
				for i := range m.Lanes {
					m.Lanes[i].Live = true
				}
				return m, err
			}}
		}},
		{"uses one token for all", "acquire_free_lanes release_lanes", leases(func(l *driver.Lease) { l.Token = waybill.ID{15: 1} })},
		{"starts again with every epoch", "acquire_free_lanes", leases(func(l *driver.Lease) { l.Epoch = 1 })},
		{"calls every lane clean", "takeover_from_a_dead_node release_lanes leave", leases(func(l *driver.Lease) { l.Unclean = false })},
		{"calls every lane unclean", "acquire_free_lanes release_lanes", leases(func(l *driver.Lease) { l.Unclean = true })},
		{"forgets the window", "takeover_from_a_dead_node leave", leases(func(l *driver.Lease) { l.Window = 0 })},
		{"gives lanes to nodes that are dead", "acquire_free_lanes one_relay_per_outbox", func(db complete) complete {
			return &worse{complete: db, acquire: func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
				_, _ = db.Heartbeat(ctx, n, time.Minute)
				n.Relay = relayName
				_, _ = db.Heartbeat(ctx, n, time.Minute)
				return db.Acquire(ctx, n, lanes, window)
			}}
		}},
		{"gives lanes away that have an owner", "acquire_free_lanes takeover_from_a_dead_node one_winner_per_lane", func(db complete) complete {
			p, w := watch(db)
			inner := w.acquire
			w.acquire = func(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
				var all []driver.Lease
				for _, lane := range lanes {
					all = append(all, driver.Lease{Lane: lane})
				}
				_ = db.Release(ctx, p.of(all), true)
				return inner(ctx, n, lanes, window)
			}
			return w
		}},
		{"forgets that a lane is dirty", "release_lanes", func(db complete) complete {
			return &worse{complete: db, release: func(ctx context.Context, leases []driver.Lease, _ bool) error {
				return db.Release(ctx, leases, false)
			}}
		}},
		{"releases lanes without the fence", "release_lanes", func(db complete) complete {
			p, w := watch(db)
			w.release = func(ctx context.Context, leases []driver.Lease, dirty bool) error {
				return db.Release(ctx, p.of(leases), dirty)
			}
			return w
		}},
		{"releases nothing", "acquire_free_lanes release_lanes", func(db complete) complete {
			return &worse{complete: db, release: func(context.Context, []driver.Lease, bool) error { return nil }}
		}},
		{"does not let nodes leave", "leave one_relay_per_outbox", func(db complete) complete {
			return &worse{complete: db, leave: func(context.Context, store.Node) error { return nil }}
		}},
	}
}

// settles breaks the input of a settlement.
func settles(change func(s *driver.Settlement)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
			s.Done, s.Retry, s.Dead = slices.Clone(s.Done), slices.Clone(s.Retry), slices.Clone(s.Dead)
			change(&s)
			return db.Settle(ctx, s)
		}}
	}
}

// settled breaks the result of a settlement.
func settled(change func(s driver.Settlement, out *driver.Settled)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
			out, err := db.Settle(ctx, s)
			change(s, &out)
			return out, err
		}}
	}
}

func retry(change func(r *driver.Result)) func(s *driver.Settlement) {
	return func(s *driver.Settlement) {
		for i := range s.Retry {
			change(&s.Retry[i])
		}
	}
}

func settleMutants() []mutant {
	return []mutant{
		{"ignores the fence", "stale_owner_fenced takeover_from_a_dead_node stale_owner_during_takeover", func(db complete) complete {
			p, w := watch(db)
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Leases = p.of(s.Leases)
				return db.Settle(ctx, s)
			}
			return w
		}},
		{"looks at the epoch only", "stale_owner_fenced", func(db complete) complete {
			p, w := watch(db)
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Leases = slices.Clone(s.Leases)
				for i, held := range p.of(s.Leases) {
					s.Leases[i].Token = held.Token
				}
				return db.Settle(ctx, s)
			}
			return w
		}},
		{"looks at the token only", "stale_owner_fenced", func(db complete) complete {
			p, w := watch(db)
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Leases = slices.Clone(s.Leases)
				for i, held := range p.of(s.Leases) {
					s.Leases[i].Epoch = held.Epoch
				}
				return db.Settle(ctx, s)
			}
			return w
		}},
		{"believes the lane in a result", "stale_owner_fenced", func(db complete) complete {
			// As with DELETE … WHERE id = ?: the fence is checked for the named
			// lane, but the row is in another one.
			p, w := watch(db)
			w.settle = func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				s.Done = slices.Clone(s.Done)
				probe, err := db.Settle(ctx, driver.Settlement{Leases: s.Leases})
				if err != nil {
					return probe, err
				}
				page, err := db.Fetch(ctx, (&env[memTx]{lanes: 8}).cursors(), 10_000)
				if err != nil {
					return probe, err
				}
				for i, r := range s.Done {
					if row, ok := find(page.Rows, r.ID); ok && row.Lane != r.Lane && slices.Contains(probe.Held, r.Lane) {
						s.Done[i].Lane = row.Lane
						s.Leases = append(slices.Clone(s.Leases), p.of([]driver.Lease{{Lane: row.Lane}})...)
					}
				}
				return db.Settle(ctx, s)
			}
			return w
		}},
		{"loses a lane and takes the whole settlement for lost", "stale_owner_fenced", func(db complete) complete {
			return &worse{complete: db, settle: func(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
				probe, err := db.Settle(ctx, driver.Settlement{Leases: s.Leases})
				if err != nil || len(probe.Held) < len(s.Leases) {
					return driver.Settled{}, err
				}
				return db.Settle(ctx, s)
			}}
		}},
		{"takes every lane for held", "stale_owner_fenced takeover_from_a_dead_node", settled(func(s driver.Settlement, out *driver.Settled) {
			out.Held = nil
			for _, l := range s.Leases {
				out.Held = append(out.Held, l.Lane)
			}
		})},
		{"moves nothing that is done", "settle_done settle_mixed", settles(func(s *driver.Settlement) { s.Done = nil })},
		{"moves only the first that is done", "settle_done", settles(func(s *driver.Settlement) { s.Done = s.Done[:min(len(s.Done), 1)] })},
		{"does not report the moved events", "settle_done settle_retry settle_dead settle_missing_rows", settled(func(_ driver.Settlement, out *driver.Settled) { out.Moved = nil })},
		{"reports missing rows as moved", "settle_done settle_missing_rows", settled(func(s driver.Settlement, out *driver.Settled) {
			for _, r := range s.Done {
				if !slices.Contains(out.Moved, r.ID) {
					out.Moved = append(out.Moved, r.ID)
				}
			}
		})},
		{"keeps a history that was not asked for", "committed_resolves", settles(func(s *driver.Settlement) { s.History = true })},
		{"keeps no history", "committed_resolves settle_done", settles(func(s *driver.Settlement) { s.History = false })},
		{"forgets attempts", "settle_retry settle_mixed", settles(retry(func(r *driver.Result) { r.Attempts = 0 }))},
		{"forgets errors", "settle_retry stored_errors", settles(retry(func(r *driver.Result) { r.Error = "" }))},
		{"cuts errors early", "stored_errors", settles(retry(func(r *driver.Result) { r.Error = r.Error[:min(len(r.Error), 3000)] }))},
		{"forgets holds", "settle_retry", settles(retry(func(r *driver.Result) { r.Holds = false }))},
		{"retries at once", "settle_retry due", settles(retry(func(r *driver.Result) { r.Delay = 0 }))},
		{"never gives up", "settle_dead settle_mixed dedup_key_absorbs_repeats", settles(func(s *driver.Settlement) {
			s.Retry, s.Dead = append(s.Retry, s.Dead...), nil
		})},
		{"gives up at once", "settle_retry settle_mixed", settles(func(s *driver.Settlement) {
			s.Dead, s.Retry = append(s.Dead, s.Retry...), nil
		})},
	}
}
