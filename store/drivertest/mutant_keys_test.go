package drivertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// worseKeys is a store whose handling of idempotency keys can be replaced.
type worseKeys struct {
	complete
	claim func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error)
	take  func(ctx context.Context, tx memTx, c driver.KeyClaim) (driver.KeyTaken, error)
	keep  func(ctx context.Context, tx memTx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error)
	save  func(ctx context.Context, tx memTx, a driver.KeyAttempt, p store.KeyPoint) (bool, error)
	end   func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error)
	renew func(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error)
	find  func(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error)
	list  func(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error)
	stats func(ctx context.Context) (store.KeyStats, error)
	solve func(ctx context.Context, id store.KeyID, end driver.KeyEnd) (bool, error)
	purge func(ctx context.Context, limit int) (int, error)
	// looks selects the records that PeekKey returns.
	looks func(rec store.KeyRecord) bool
}

// keys breaks the keys of an otherwise correct store.
func keys(change func(db complete, w *worseKeys)) tamper {
	return func(db complete) complete {
		w := &worseKeys{
			complete: db, claim: db.ClaimKey, take: db.TakeKey, keep: db.StoreAnswer, save: db.SavePoint, end: db.EndKey, renew: db.RenewKey, find: db.FindKey,
			list: db.ListKeys, stats: db.KeyStats, solve: db.ResolveKey, purge: db.PurgeKeys,
			looks: func(rec store.KeyRecord) bool {
				return rec.State == store.KeySucceeded && !rec.Lost && !rec.ResultExpired
			},
		}
		change(db, w)
		return w
	}
}

func (w *worseKeys) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	return w.claim(ctx, c)
}

func (w *worseKeys) TakeKey(ctx context.Context, tx memTx, c driver.KeyClaim) (driver.KeyTaken, error) {
	return w.take(ctx, tx, c)
}

func (w *worseKeys) StoreAnswer(ctx context.Context, tx memTx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	return w.keep(ctx, tx, a, answer)
}

func (w *worseKeys) SavePoint(ctx context.Context, tx memTx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	return w.save(ctx, tx, a, p)
}

func (w *worseKeys) EndKey(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
	return w.end(ctx, a, end)
}

func (w *worseKeys) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return w.renew(ctx, a, lease)
}

func (w *worseKeys) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	return w.find(ctx, id)
}

func (w *worseKeys) ListKeys(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
	return w.list(ctx, f, after, limit)
}

func (w *worseKeys) KeyStats(ctx context.Context) (store.KeyStats, error) { return w.stats(ctx) }

func (w *worseKeys) ResolveKey(ctx context.Context, id store.KeyID, end driver.KeyEnd) (bool, error) {
	return w.solve(ctx, id, end)
}

func (w *worseKeys) PurgeKeys(ctx context.Context, limit int) (int, error) {
	return w.purge(ctx, limit)
}

// PeekKey implements [driver.KeyPeeker], which the memstore does not implement.
func (w *worseKeys) PeekKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	rec, ok, err := w.find(ctx, id)
	if !ok || err != nil || !w.looks(rec) {
		return store.KeyRecord{}, false, err
	}
	return rec, true, nil
}

func (w *worseKeys) PeekAlways() bool { return true }

// A store with a correct PeekKey passes as well.
func TestSuiteAcceptsAStoreThatPeeks(t *testing.T) {
	for _, c := range keyChecks[memTx]() {
		rec := try(t, c, keys(func(complete, *worseKeys) {}))
		if len(rec.failures) > 0 || rec.panicked != "" {
			t.Errorf("%s failed: %q %s", c.testName(), rec.failures, rec.panicked)
		}
	}
}

func claimMutants() []mutant {
	named := func(change func(id *store.KeyID)) tamper {
		return keys(func(db complete, w *worseKeys) {
			w.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
				change(&c.KeyID)
				return db.ClaimKey(ctx, c)
			}
			w.find = func(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
				named := id
				change(&named)
				rec, ok, err := db.FindKey(ctx, named)
				rec.KeyID = id
				return rec, ok, err
			}
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				change(&a.KeyID)
				return db.EndKey(ctx, a, end)
			}
		})
	}
	return []mutant{
		{"has keys in whatever case", "claim_keys", named(func(id *store.KeyID) { id.Key = strings.ToLower(id.Key) })},
		{"has keys without the spaces behind them", "claim_keys", named(func(id *store.KeyID) { id.Key = strings.TrimRight(id.Key, " ") })},
		{"has one scope for all tenants", "claim_keys", named(func(id *store.KeyID) { id.Tenant = "" })},
		{"looks at no hash", "claim_keys", keys(func(db complete, w *worseKeys) {
			w.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
				if rec, ok, _ := db.FindKey(ctx, c.KeyID); ok {
					c.Hash = rec.Hash
				}
				return db.ClaimKey(ctx, c)
			}
		})},
		{"grants the key to every claim", "claim_keys concurrent_key_claims", keys(func(db complete, w *worseKeys) {
			w.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
				rec, _, err := db.ClaimKey(ctx, c)
				return rec, true, err
			}
		})},
		{"ends attempts of other owners", "end_keys", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				if rec, ok, _ := db.FindKey(ctx, a.KeyID); ok {
					a.Owner, a.Fence = rec.Owner, rec.Fence
				}
				return db.EndKey(ctx, a, end)
			}
		})},
		{"does not expire failures", "claim_keys", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				if end.State == store.KeyFailed {
					end.Answer.Retention += time.Hour
				}
				return db.EndKey(ctx, a, end)
			}
		})},
		{"takes failures that are uncertain for others", "end_keys inspect_keys", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				if end.State == store.KeyUncertain {
					end.State, end.Answer.Retention = store.KeyFailed, time.Hour
				}
				return db.EndKey(ctx, a, end)
			}
		})},
		{"cannot decide", "inspect_keys", keys(func(_ complete, w *worseKeys) {
			w.solve = func(context.Context, store.KeyID, driver.KeyEnd) (bool, error) { return true, nil }
		})},
	}
}

func takeMutants() []mutant {
	return []mutant{
		{"commits a claim where it should take", "take_keys", keys(func(db complete, w *worseKeys) {
			w.take = func(ctx context.Context, _ memTx, c driver.KeyClaim) (driver.KeyTaken, error) {
				rec, ok, err := db.ClaimKey(ctx, c)
				return driver.KeyTaken{Taken: ok, Attempt: driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}, Record: rec}, err
			}
		})},
		{"gives a key to all that are busy", "take_keys", keys(func(db complete, w *worseKeys) {
			w.take = func(ctx context.Context, tx memTx, c driver.KeyClaim) (driver.KeyTaken, error) {
				got, err := db.TakeKey(ctx, tx, c)
				if got.Busy {
					got = driver.KeyTaken{Taken: true, Attempt: driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: 1}}
				}
				return got, err
			}
		})},
		{"keeps nothing", "take_keys claimed_keys stored_answers", keys(func(_ complete, w *worseKeys) {
			w.keep = func(context.Context, memTx, driver.KeyAttempt, driver.KeyAnswer) (bool, error) { return true, nil }
		})},
		{"stores the answers of other owners", "claimed_keys", keys(func(db complete, w *worseKeys) {
			w.keep = func(ctx context.Context, tx memTx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
				_, err := db.StoreAnswer(ctx, tx, a, answer)
				return true, err
			}
		})},
		{"renews expired leases", "claimed_keys", keys(func(db complete, w *worseKeys) {
			w.renew = func(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
				_, err := db.RenewKey(ctx, a, lease)
				return true, err
			}
		})},
		{"forgets points", "claimed_keys", keys(func(_ complete, w *worseKeys) {
			w.save = func(context.Context, memTx, driver.KeyAttempt, store.KeyPoint) (bool, error) { return true, nil }
		})},
		{"cuts answers", "stored_answers", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				end.Answer.Result = end.Answer.Result[:min(len(end.Answer.Result), 4096)]
				return db.EndKey(ctx, a, end)
			}
		})},
		{"takes an empty answer for none", "stored_answers", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				if len(end.Answer.Result) == 0 {
					end.Answer.Result = nil
				}
				return db.EndKey(ctx, a, end)
			}
		})},
		{"ignores stored answers in PeekKey", "stored_answers", keys(func(_ complete, w *worseKeys) {
			w.looks = func(store.KeyRecord) bool { return false }
		})},
		{"peeks at keys that have not succeeded", "stored_answers", keys(func(_ complete, w *worseKeys) {
			w.looks = func(rec store.KeyRecord) bool { return !rec.Lost && !rec.ResultExpired }
		})},
		{"sees answers that are not there", "stored_answers", keys(func(_ complete, w *worseKeys) {
			w.looks = func(rec store.KeyRecord) bool { return rec.State == store.KeySucceeded }
		})},
		{"has answers for as long as their records", "stored_answers", keys(func(db complete, w *worseKeys) {
			w.end = func(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
				end.Answer.ResultRetention = 0
				return db.EndKey(ctx, a, end)
			}
		})},
	}
}

func keyDeskMutants() []mutant {
	return []mutant{
		{"lists from the beginning", "inspect_keys", keys(func(db complete, w *worseKeys) {
			calls := 0
			w.list = func(ctx context.Context, f store.KeyFilter, _ store.KeyID, limit int) ([]store.KeyRecord, error) {
				if calls++; calls > 100 {
					return nil, nil
				}
				return db.ListKeys(ctx, f, store.KeyID{}, limit)
			}
		})},
		{"lists what succeeded", "inspect_keys", keys(func(db complete, w *worseKeys) {
			w.list = func(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
				if len(f.States) == 0 {
					f.States = []store.KeyState{store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain}
				}
				return db.ListKeys(ctx, f, after, limit)
			}
		})},
		{"counts nothing that lapsed", "inspect_keys", keys(func(db complete, w *worseKeys) {
			w.stats = func(ctx context.Context) (store.KeyStats, error) {
				s, err := db.KeyStats(ctx)
				s.Lapsed = 0
				return s, err
			}
		})},
		{"purges all at once", "purge_keys", keys(func(db complete, w *worseKeys) {
			w.purge = func(ctx context.Context, _ int) (int, error) { return db.PurgeKeys(ctx, 1000) }
		})},
		{"purges nothing", "stored_answers purge_keys", keys(func(_ complete, w *worseKeys) {
			w.purge = func(context.Context, int) (int, error) { return 0, nil }
		})},
		{"purges uncertain keys", "purge_keys", keys(func(db complete, w *worseKeys) {
			w.purge = func(ctx context.Context, limit int) (int, error) {
				records, err := db.ListKeys(ctx, store.KeyFilter{States: []store.KeyState{store.KeyUncertain}}, store.KeyID{}, limit)
				for _, r := range records { // treated as deleted
					if _, err := db.ResolveKey(ctx, r.KeyID, driver.KeyEnd{State: store.KeyFailed}); err != nil {
						return 0, err
					}
				}
				n, perr := db.PurgeKeys(ctx, limit)
				if err == nil {
					err = perr
				}
				return n, err
			}
		})},
		{"purges keys in processing", "purge_keys", keys(func(db complete, w *worseKeys) {
			w.purge = func(ctx context.Context, limit int) (int, error) {
				records, err := db.ListKeys(ctx, store.KeyFilter{States: []store.KeyState{store.KeyProcessing}}, store.KeyID{}, limit)
				for _, r := range records {
					a := driver.KeyAttempt{KeyID: r.KeyID, Owner: r.Owner, Fence: r.Fence}
					if _, err := db.EndKey(ctx, a, driver.KeyEnd{State: store.KeyFailed}); err != nil {
						return 0, err
					}
				}
				n, perr := db.PurgeKeys(ctx, limit)
				if err == nil {
					err = perr
				}
				return n, err
			}
		})},
	}
}
