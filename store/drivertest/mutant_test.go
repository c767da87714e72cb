package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// A correct store passes every check.
func TestSuiteAcceptsAGoodStore(t *testing.T) {
	for _, c := range checks[memTx]() {
		rec := try(t, c, nil)
		if len(rec.failures) > 0 || rec.panicked != "" {
			t.Errorf("%s failed: %q %s", c.testName(), rec.failures, rec.panicked)
		}
	}
}

// A store that is broken in one way fails at least one check of every affected
// behavior: a suite that cannot fail proves nothing.
func TestSuiteRefusesBrokenStores(t *testing.T) {
	for _, m := range slices.Concat(
		writeMutants(), readMutants(), laneMutants(), settleMutants(), seekMutants(), finishMutants(), browseMutants(), mendMutants(), keepMutants(),
		claimMutants(), takeMutants(), keyDeskMutants(),
	) {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			for row := range strings.FieldsSeq(m.rows) {
				noticed := 0
				for _, c := range checks[memTx]() {
					if c.row != row {
						continue
					}
					rec := try(t, c, m.tamper)
					if rec.panicked != "" {
						t.Errorf("%s panicked instead of failing: %s", c.testName(), rec.panicked)
					}
					if len(rec.failures) > 0 {
						noticed++
					}
				}
				if noticed == 0 {
					t.Errorf("a store that %s shows behavior %s, as far as the suite can see", m.name, row)
				}
			}
		})
	}
}

// mutant is a way to break a store, and the behaviors that it affects.
type mutant struct {
	name   string
	rows   string
	tamper tamper
}

// appends breaks the input of Append.
func appends(change func(evs []waybill.Event) []waybill.Event) tamper {
	return func(db complete) complete {
		return &worse{complete: db, append: func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
			placed, err := db.Append(ctx, tx, change(slices.Clone(evs)))
			if err != nil {
				return nil, err
			}
			byID := map[waybill.ID]driver.AppendResult{}
			for _, p := range placed {
				byID[p.ID] = p
			}
			out := make([]driver.AppendResult, len(evs))
			for i, ev := range evs {
				out[i] = cmp.Or(byID[ev.ID], driver.AppendResult{ID: ev.ID})
			}
			return out, nil
		}}
	}
}

// each changes every event.
func each(change func(ev *waybill.Event)) func(evs []waybill.Event) []waybill.Event {
	return func(evs []waybill.Event) []waybill.Event {
		for i := range evs {
			change(&evs[i])
		}
		return evs
	}
}

// placed breaks the result of Append.
func placed(change func(ev waybill.Event, p *driver.AppendResult)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, append: func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
			placed, err := db.Append(ctx, tx, evs)
			for i := range placed {
				change(evs[i], &placed[i])
			}
			return placed, err
		}}
	}
}

// sessions breaks transactions.
func sessions(change func(ctx context.Context, s *worseSession)) tamper {
	return func(db complete) complete {
		return &worse{complete: db, begin: func(ctx context.Context, opts *sql.TxOptions) (driver.Session[memTx], error) {
			inner, err := db.Begin(ctx, opts)
			if err != nil {
				return nil, err
			}
			s := &worseSession{Session: inner}
			change(ctx, s)
			return s, nil
		}}
	}
}

// endings breaks the result of a commit with savepoints.
func endings(change func(e *driver.CommitInfo)) tamper {
	return sessions(func(_ context.Context, s *worseSession) {
		s.commit = func(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
			ending, err := s.Session.Commit(ctx, accepted, check)
			change(&ending)
			return ending, err
		}
	})
}

func writeMutants() []mutant {
	return []mutant{
		{"drops the last event of a batch", "2 4 13a W7", appends(func(evs []waybill.Event) []waybill.Event { return evs[:len(evs)-1] })},
		{"reorders a batch", "2 4 13c R1", appends(func(evs []waybill.Event) []waybill.Event {
			slices.Reverse(evs)
			return evs
		})},
		{"writes events with a dedup key first", "4", appends(func(evs []waybill.Event) []waybill.Event {
			slices.SortStableFunc(evs, func(a, b waybill.Event) int { return strings.Compare(b.DedupKey, a.DedupKey) })
			return evs
		})},
		{"commits on rollback", "1 13a 13b W2 W4", sessions(func(_ context.Context, s *worseSession) {
			s.rollback = func(ctx context.Context) error {
				_, err := s.Session.Commit(ctx, nil, false)
				return err
			}
		})},
		{"rolls back on commit", "2 10 W1 W3", sessions(func(_ context.Context, s *worseSession) {
			s.commit = func(ctx context.Context, _ []waybill.ID, _ bool) (driver.CommitInfo, error) {
				return driver.CommitInfo{Checked: true}, s.Session.Rollback(ctx)
			}
		})},
		{"commits every write by itself", "1 13 13b R5 W4 W13", autocommit},
		{"returns the wrong lane", "W6", placed(func(_ waybill.Event, p *driver.AppendResult) { p.Lane = (p.Lane + 1) % 8 })},
		{"hides duplicates", "11", placed(func(ev waybill.Event, p *driver.AppendResult) { p.ID = ev.ID })},
		{"folds dedup keys", "11", appends(each(func(ev *waybill.Event) { ev.DedupKey = strings.ToLower(ev.DedupKey) }))},
		{"pads dedup keys", "11", appends(each(func(ev *waybill.Event) { ev.DedupKey = strings.TrimRight(ev.DedupKey, " ") }))},
		{"forgets the tenant of dedup keys", "11", appends(each(func(ev *waybill.Event) { ev.TenantID = "" }))},
		{"ignores dedup keys", "11 13 W5", appends(each(func(ev *waybill.Event) { ev.DedupKey = "" }))},
		{"ignores delays", "4 R4 W11", appends(each(func(ev *waybill.Event) { ev.Delay, ev.AvailableAt = 0, time.Time{} }))},
		{"has no order of aggregates", "2", appends(each(func(ev *waybill.Event) { ev.AggregateID = "" }))},
		{"compacts payloads", "W8", appends(each(func(ev *waybill.Event) {
			var out bytes.Buffer
			if json.Compact(&out, ev.Payload) == nil {
				ev.Payload = out.Bytes()
			}
		}))},
		{"cuts payloads at NUL", "W8", appends(each(func(ev *waybill.Event) { ev.Payload, _, _ = bytes.Cut(ev.Payload, []byte{0}) }))},
		{"drops headers", "6 W9 W7", appends(each(func(ev *waybill.Event) { ev.Headers = nil }))},
		{"keeps seconds only", "W7", appends(each(func(ev *waybill.Event) { ev.OccurredAt = ev.OccurredAt.Truncate(time.Second) }))},
		{"drops the causation", "W7 W10", appends(each(func(ev *waybill.Event) { ev.CausationID = "" }))},
		{"hides undone events", "13", endings(func(e *driver.CommitInfo) { e.Undone = nil })},
		{"never checks", "W6", endings(func(e *driver.CommitInfo) { e.Checked = false })},
		{"gives out a new hub every time", "W6", func(db complete) complete {
			return &worse{complete: db, local: func() *driver.Hub { return new(driver.Hub) }}
		}},
		{"commits under the caller's context", "W2", sessions(func(outer context.Context, s *worseSession) {
			s.commit = func(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
				if err := outer.Err(); err != nil {
					return driver.CommitInfo{}, errors.Join(err, s.Session.Rollback(ctx))
				}
				return s.Session.Commit(ctx, accepted, check)
			}
		})},
		{"begins with a canceled context", "W2", func(db complete) complete {
			return &worse{complete: db, begin: func(ctx context.Context, opts *sql.TxOptions) (driver.Session[memTx], error) {
				return db.Begin(context.WithoutCancel(ctx), opts)
			}}
		}},
		{"accepts an id twice", "W4 13a", func(db complete) complete {
			return &worse{complete: db, append: func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
				placed, err := db.Append(ctx, tx, evs)
				if err != nil && strings.Contains(err.Error(), "duplicate id") {
					// As INSERT IGNORE would.
					err, placed = nil, make([]driver.AppendResult, len(evs))
					for i, ev := range evs {
						placed[i].ID = ev.ID
					}
				}
				return placed, err
			}}
		}},
		{"returns another error for a finished transaction", "3", func(db complete) complete {
			return &worse{complete: db, append: func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
				placed, err := db.Append(ctx, tx, evs)
				if errors.Is(err, waybill.ErrTxDone) {
					err = errors.New("closed")
				}
				return placed, err
			}}
		}},
		{"reports every event as committed", "1 11 W12", func(db complete) complete {
			return &worse{complete: db, committed: func(context.Context, waybill.ID) (bool, error) { return true, nil }}
		}},
		{"reports no event as committed", "2 W12", func(db complete) complete {
			return &worse{complete: db, committed: func(context.Context, waybill.ID) (bool, error) { return false, nil }}
		}},
		{"is never uncertain", "W12", func(db complete) complete {
			return &worse{complete: db, committed: func(ctx context.Context, id waybill.ID) (bool, error) {
				found, _ := db.Committed(ctx, id)
				return found, nil
			}}
		}},
	}
}

// autocommit writes every batch in its own transaction.
func autocommit(db complete) complete {
	return &worse{complete: db, append: func(ctx context.Context, _ memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
		s, err := db.Begin(ctx, nil)
		if err != nil {
			return nil, err
		}
		placed, err := db.Append(ctx, s.Tx(), evs)
		if err != nil {
			return nil, errors.Join(err, s.Rollback(ctx))
		}
		_, err = s.Commit(ctx, nil, false)
		return placed, err
	}}
}
