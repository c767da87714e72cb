package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

var (
	// ErrNoKey says that a key has no record: it was never used, or its time is over.
	ErrNoKey = errors.New("admin: no such key")
	// ErrNotUncertain says that there is nothing to decide about a key.
	ErrNotUncertain = errors.New("admin: the key is not uncertain")
)

// Keys is the desk for idempotency keys: what failed, what is stuck, and what only an operator can decide. Its methods may be called
// concurrently, and while requests run.
type Keys struct {
	db  store.KeyRecords
	cfg Config
}

// NewKeys returns a desk for the idempotency keys of a database.
func NewKeys(db store.KeyRecords, cfg Config) (*Keys, error) {
	cfg, err := cfg.complete(db != nil)
	if err != nil {
		return nil, err
	}
	return &Keys{db: db, cfg: cfg}, nil
}

// Stats returns how the keys stand, and tells the observer.
func (k *Keys) Stats(ctx context.Context) (store.KeyStats, error) {
	s, err := k.db.KeyStats(ctx)
	if err != nil {
		return store.KeyStats{}, fmt.Errorf("admin: keys: %w", err)
	}
	if k.cfg.Observe.Keys != nil {
		k.cfg.Observe.Keys(observe.Keys{Processing: s.Processing, Failed: s.Failed, Uncertain: s.Uncertain, Lapsed: s.Lapsed})
	}
	return s, nil
}

// KeyPage is a page of records, and where the next one begins.
type KeyPage struct {
	// Records are without their results.
	Records []store.KeyRecord
	// After is the last record's name; for the next page, pass it on. More says that there may be one.
	After store.KeyID
	More  bool
}

// List returns records that match, in the order of tenant, operation and key, after one of them; the zero value for the first page. Without
// states in the filter it is those that did not succeed. A limit of 0 or less is Config.Batch.
func (k *Keys) List(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) (KeyPage, error) {
	if limit <= 0 {
		limit = k.cfg.BatchSize
	}
	records, err := k.db.ListKeys(ctx, f, after, limit)
	if err != nil {
		return KeyPage{}, fmt.Errorf("admin: listing keys: %w", err)
	}
	page := KeyPage{Records: records, After: after, More: len(records) == limit}
	if n := len(records); n > 0 {
		page.After = records[n-1].KeyID
	}
	return page, nil
}

// Find returns the record of a key, with its result, or [ErrNoKey].
func (k *Keys) Find(ctx context.Context, id store.KeyID) (store.KeyRecord, error) {
	rec, ok, err := k.db.FindKey(ctx, id)
	switch {
	case err != nil:
		return store.KeyRecord{}, fmt.Errorf("admin: finding a key: %w", err)
	case !ok:
		return store.KeyRecord{}, ErrNoKey
	}
	return rec, nil
}

// RunAgain decides that what an uncertain key stands for did not happen: the next request with the key runs it, from the last point that
// was saved. Why is kept as the record's error, for keep: how long a key is remembered that nobody uses again. If the key is not
// uncertain, that is [ErrNotUncertain], and nothing has changed.
func (k *Keys) RunAgain(ctx context.Context, id store.KeyID, why string, keep time.Duration) error {
	return k.resolve(ctx, id, store.KeyEnd{State: store.KeyFailed, Code: "resolved", Error: why, Answer: store.KeyAnswer{TTL: keep}})
}

// Done decides that what an uncertain key stands for has happened: repeats get the answer. One that only names what was made ([store.KeyAnswer].Ref)
// is marked as lost, so that repeats are told so, and nothing runs again. If the key is not uncertain, that is [ErrNotUncertain],
// and nothing has changed.
func (k *Keys) Done(ctx context.Context, id store.KeyID, answer store.KeyAnswer) error {
	if answer.Result == nil {
		answer.Lost = true
	}
	return k.resolve(ctx, id, store.KeyEnd{State: store.KeySucceeded, Answer: answer})
}

func (k *Keys) resolve(ctx context.Context, id store.KeyID, end store.KeyEnd) error {
	if end.Answer.TTL <= 0 {
		return fmt.Errorf("admin: resolving a key: it would be remembered for %v", end.Answer.TTL)
	}
	ok, err := k.db.ResolveKey(ctx, id, end)
	switch {
	case err != nil:
		return fmt.Errorf("admin: resolving a key: %w", err)
	case ok:
		return nil
	}
	if _, err := k.Find(ctx, id); err != nil {
		return err
	}
	return ErrNotUncertain
}

// Purge deletes records that have expired, and answers that have outlived their own time, in batches, until there are none, and returns how
// many. Nobody knows beforehand how many there are: the progress has no total.
func (k *Keys) Purge(ctx context.Context, progress func(Progress)) (int, error) {
	done := 0
	for {
		n, err := k.db.PurgeKeys(ctx, k.cfg.BatchSize)
		if err != nil {
			return done, fmt.Errorf("admin: purging keys: %w", err)
		}
		done += n
		if n > 0 && progress != nil {
			progress(Progress{Done: int64(done)})
		}
		if n < k.cfg.BatchSize {
			return done, nil
		}
		if ctx.Err() != nil {
			return done, context.Cause(ctx)
		}
	}
}
