package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/requestkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

var (
	// ErrNoKey means that a key has no record: it was never used, or it has
	// expired.
	ErrNoKey = errors.New("admin: no such key")
	// ErrNotUncertain means that the key needs no decision.
	ErrNotUncertain = errors.New("admin: the key is not uncertain")
)

// Keys inspects and maintains idempotency keys: failed, stuck and uncertain
// ones. Its methods may be called concurrently, and while requests run.
type Keys struct {
	db  driver.KeyRecords
	cfg Config
}

// NewKeys returns a Keys for the idempotency keys of a database.
func NewKeys[T any](db driver.Store[T], cfg Config) (*Keys, error) {
	roles, err := driver.Get(db, "admin", "KeyRecords")
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.complete(); err != nil {
		return nil, err
	}
	return &Keys{db: roles.KeyRecords, cfg: cfg}, nil
}

// Stats returns the keys' counts, and reports them to the observer.
func (k *Keys) Stats(ctx context.Context) (store.KeyStats, error) {
	s, err := k.db.KeyStats(ctx)
	if err != nil {
		return store.KeyStats{}, fmt.Errorf("admin: keys: %w", err)
	}
	if k.cfg.Observe.Keys != nil {
		k.cfg.Observe.Keys(observe.KeysInfo{Processing: s.Processing, Failed: s.Failed, Uncertain: s.Uncertain, Lapsed: s.Lapsed})
	}
	return s, nil
}

// KeyPage is a page of records, and the start of the next page.
type KeyPage struct {
	// Records omit the stored results.
	Records []store.KeyRecord
	// After is the last record's name; pass it to List for the next page. More
	// reports that there may be one.
	After store.KeyID
	More  bool
}

// List returns matching records in the order of tenant, operation and key,
// after the given key; the zero value for the first page. Without states in the
// filter, List returns the keys that did not succeed. A limit of 0 or less
// means Config.BatchSize.
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

// KeyQuery identifies a request by the values that its client sent.
type KeyQuery struct {
	// Tenant and Principal are those of the request; see httpkey.Scope.
	Tenant, Principal string
	// Operation is the pattern of the route, such as "POST /orders", the full
	// name of the gRPC method, or the operation of a [store.KeyID]. It may be
	// empty if the service has strict routes.
	Operation string
	// Key is the idempotency key that the client sent.
	Key string
}

// Search returns the records of a request. The table does not contain the keys
// of clients over HTTP and gRPC, but hashes of scope, operation and key: Search
// computes them. If there is no record, Search returns [ErrNoKey].
func (k *Keys) Search(ctx context.Context, q KeyQuery) ([]store.KeyRecord, error) {
	operation := requestkey.Operation(q.Operation)
	var out []store.KeyRecord
	for _, id := range []store.KeyID{
		{Tenant: q.Tenant, Operation: operation, Key: requestkey.Key(q.Tenant, q.Principal, operation, q.Key)},
		{Tenant: q.Tenant, Operation: requestkey.AnyRoute, Key: requestkey.Key(q.Tenant, q.Principal, requestkey.AnyRoute, q.Key)},
		{Tenant: q.Tenant, Operation: operation, Key: q.Key}, // of a call of package idempotency
	} {
		rec, err := k.Find(ctx, id)
		switch {
		case err == nil:
			out = append(out, rec)
		case !errors.Is(err, ErrNoKey):
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, ErrNoKey
	}
	return out, nil
}

// RunAgain decides that the operation of an uncertain key did not happen: the
// next request with the key runs it, after the last committed phase. The reason
// is stored as the record's error for the duration keep, after which an unused
// key expires. If the key is not uncertain, RunAgain returns [ErrNotUncertain]
// and changes nothing.
func (k *Keys) RunAgain(ctx context.Context, id store.KeyID, why string, keep time.Duration) error {
	ctx = audited(ctx, "key_run_again", "", keyTarget(id, why))
	return k.resolve(ctx, id, driver.KeyEnd{State: store.KeyFailed, Code: "resolved", Error: why, Answer: driver.KeyAnswer{Retention: keep}})
}

// Done decides that the operation of an uncertain key has happened: repeated
// requests get the answer. An answer that only names the result
// ([driver.KeyAnswer].Ref) is marked as lost; repeated requests get an error
// that explains this, and nothing runs again. If the key is not uncertain, Done
// returns [ErrNotUncertain] and changes nothing.
func (k *Keys) Done(ctx context.Context, id store.KeyID, answer driver.KeyAnswer) error {
	if answer.Result == nil {
		answer.Lost = true
	}
	ctx = audited(ctx, "key_done", "", keyTarget(id, ""))
	return k.resolve(ctx, id, driver.KeyEnd{State: store.KeySucceeded, Answer: answer})
}

// keyTarget names a key in the audit by its hash, as the log does: knowing a
// key gives access to its answer.
func keyTarget(id store.KeyID, why string) string {
	sum := sha256.Sum256([]byte(id.Key))
	return fields("", "operation", id.Operation, "tenant_id", id.Tenant, "key", "sha256:"+hex.EncodeToString(sum[:4]), "reason", why)
}

func (k *Keys) resolve(ctx context.Context, id store.KeyID, end driver.KeyEnd) error {
	if end.Answer.Retention <= 0 {
		return fmt.Errorf("admin: resolving a key: the retention %v is not positive", end.Answer.Retention)
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

// Purge deletes expired records and expired answers, in batches, until there
// are none, and returns how many. The number is not known beforehand: the
// progress has no total.
func (k *Keys) Purge(ctx context.Context, progress func(Progress)) (int, error) {
	done := 0
	ctx = purging(ctx, "purge_keys", "")
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
