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
		claimMutants(), takeMutants(), keyDeskMutants(), registryMutants(), divertMutants(), backlogReadMutants(), backlogInspectMutants(),
		backlogSettleMutants(), backlogDeadMutants(), refillMutants(), restoreMutants(), auditMutants(), causesMutants(), rollupMutants(), appliedMutants(),
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
		{"drops the last event of a batch", "commit_keeps_rows write_order tracked_events_survive_a_rollback fields_are_stored_unchanged", appends(func(evs []waybill.Event) []waybill.Event { return evs[:len(evs)-1] })},
		{"reorders a batch", "commit_keeps_rows write_order large_transactions fetch", appends(func(evs []waybill.Event) []waybill.Event {
			slices.Reverse(evs)
			return evs
		})},
		{"writes events with a dedup key first", "write_order", appends(func(evs []waybill.Event) []waybill.Event {
			slices.SortStableFunc(evs, func(a, b waybill.Event) int { return strings.Compare(b.DedupKey, a.DedupKey) })
			return evs
		})},
		{"commits on rollback", "rollback_leaves_nothing tracked_events_survive_a_rollback transaction_belongs_to_intx canceled_contexts rejected_writes", sessions(func(_ context.Context, s *worseSession) {
			s.rollback = func(ctx context.Context) error {
				_, err := s.Session.Commit(ctx, nil, false)
				return err
			}
		})},
		{"rolls back on commit", "commit_keeps_rows ids_increase transaction_in_the_context joined_transactions", sessions(func(_ context.Context, s *worseSession) {
			s.commit = func(ctx context.Context, _ []waybill.ID, _ bool) (driver.CommitInfo, error) {
				return driver.CommitInfo{Checked: true}, s.Session.Rollback(ctx)
			}
		})},
		{"commits every write by itself", "rollback_leaves_nothing savepoints_are_respected transaction_belongs_to_intx reads_see_committed_rows rejected_writes random_transactions", autocommit},
		{"returns the wrong lane", "commits_are_published_once", placed(func(_ waybill.Event, p *driver.AppendResult) { p.Lane = (p.Lane + 1) % 8 })},
		{"hides duplicates", "dedup_key_absorbs_repeats", placed(func(ev waybill.Event, p *driver.AppendResult) { p.ID = ev.ID })},
		{"folds dedup keys", "dedup_key_absorbs_repeats", appends(each(func(ev *waybill.Event) { ev.DedupKey = strings.ToLower(ev.DedupKey) }))},
		{"pads dedup keys", "dedup_key_absorbs_repeats", appends(each(func(ev *waybill.Event) { ev.DedupKey = strings.TrimRight(ev.DedupKey, " ") }))},
		{"forgets the tenant of dedup keys", "dedup_key_absorbs_repeats", appends(each(func(ev *waybill.Event) { ev.TenantID = "" }))},
		{"ignores dedup keys", "dedup_key_absorbs_repeats savepoints_are_respected foreign_transactions", appends(each(func(ev *waybill.Event) { ev.DedupKey = "" }))},
		{"ignores delays", "write_order due delays", appends(each(func(ev *waybill.Event) { ev.Delay, ev.AvailableAt = 0, time.Time{} }))},
		{"has no order of aggregates", "commit_keeps_rows", appends(each(func(ev *waybill.Event) { ev.AggregateID = "" }))},
		{"compacts payloads", "payloads_are_stored_unchanged", appends(each(func(ev *waybill.Event) {
			var out bytes.Buffer
			if json.Compact(&out, ev.Payload) == nil {
				ev.Payload = out.Bytes()
			}
		}))},
		{"cuts payloads at NUL", "payloads_are_stored_unchanged", appends(each(func(ev *waybill.Event) { ev.Payload, _, _ = bytes.Cut(ev.Payload, []byte{0}) }))},
		{"drops headers", "hooks_before_the_write headers_are_stored_unchanged fields_are_stored_unchanged", appends(each(func(ev *waybill.Event) { ev.Headers = nil }))},
		{"keeps seconds only", "fields_are_stored_unchanged", appends(each(func(ev *waybill.Event) { ev.OccurredAt = ev.OccurredAt.Truncate(time.Second) }))},
		{"drops the causation", "fields_are_stored_unchanged origin_from_the_context", appends(each(func(ev *waybill.Event) { ev.CausationID = "" }))},
		{"hides undone events", "savepoints_are_respected", endings(func(e *driver.CommitInfo) { e.Undone = nil })},
		{"never checks", "commits_are_published_once", endings(func(e *driver.CommitInfo) { e.Checked = false })},
		{"gives out a new hub every time", "commits_are_published_once", func(db complete) complete {
			return &worse{complete: db, local: func() *driver.Hub { return new(driver.Hub) }}
		}},
		{"commits under the caller's context", "canceled_contexts", sessions(func(outer context.Context, s *worseSession) {
			s.commit = func(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
				if err := outer.Err(); err != nil {
					return driver.CommitInfo{}, errors.Join(err, s.Session.Rollback(ctx))
				}
				return s.Session.Commit(ctx, accepted, check)
			}
		})},
		{"begins with a canceled context", "canceled_contexts", func(db complete) complete {
			return &worse{complete: db, begin: func(ctx context.Context, opts *sql.TxOptions) (driver.Session[memTx], error) {
				return db.Begin(context.WithoutCancel(ctx), opts)
			}}
		}},
		{"accepts an id twice", "rejected_writes tracked_events_survive_a_rollback", func(db complete) complete {
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
		{"returns another error for a finished transaction", "no_write_without_a_transaction", func(db complete) complete {
			return &worse{complete: db, append: func(ctx context.Context, tx memTx, evs []waybill.Event) ([]driver.AppendResult, error) {
				placed, err := db.Append(ctx, tx, evs)
				if errors.Is(err, waybill.ErrTxDone) {
					err = errors.New("closed")
				}
				return placed, err
			}}
		}},
		{"reports every event as committed", "rollback_leaves_nothing dedup_key_absorbs_repeats committed_resolves", func(db complete) complete {
			return &worse{complete: db, committed: func(context.Context, waybill.ID) (bool, error) { return true, nil }}
		}},
		{"reports no event as committed", "commit_keeps_rows committed_resolves", func(db complete) complete {
			return &worse{complete: db, committed: func(context.Context, waybill.ID) (bool, error) { return false, nil }}
		}},
		{"is never uncertain", "committed_resolves", func(db complete) complete {
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
