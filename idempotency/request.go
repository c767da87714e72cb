package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill/store"
)

// Request is an operation to run once. Tenant, operation and key together
// identify it; they compare as bytes.
type Request struct {
	// TenantID separates tenants, at most 64 bytes. It may be empty, and is
	// never taken from the context: a lookup under the wrong tenant would
	// expose another tenant's answer, so the caller has to set it explicitly.
	// Defaults to the empty tenant.
	TenantID string
	// Operation is the name of the operation, at most 128 bytes:
	// "ORDER_CREATE". The same key with another operation is another key.
	// Required.
	Operation string
	// Key is the client's key, 1 to 255 bytes. Required.
	Key string
	// Hash is the hash of all parts of the request that define the operation;
	// see [HashJSON] and [HashFields]. Required.
	Hash Hash
	// Retention is how long a repeat gets the answer, counted from its
	// completion. Defaults to [Config.Retention].
	Retention time.Duration
	// Lease replaces [Config.Lease] for this request: long for an operation
	// whose repeat is expensive, short for one that other requests wait for.
	// Defaults to Config.Lease.
	Lease time.Duration
	// WaitMax is how long to wait for a concurrent run of the same key, instead
	// of returning [waybill.ErrInProgress] immediately. If that run fails, one
	// of the waiting requests runs the operation. Defaults to no waiting.
	WaitMax time.Duration
}

const (
	maxTenant    = 64
	maxOperation = 128
	maxKey       = 255
	maxRef       = 255
)

// Validate returns an error that names every invalid field.
func (r Request) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	text := func(field, s string, limit int) {
		if len(s) > limit {
			wrong("Request.%s: %d bytes, more than the maximum of %d", field, len(s), limit)
		}
		if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			wrong("Request.%s: not valid UTF-8 without NUL", field)
		}
	}
	text("TenantID", r.TenantID, maxTenant)
	text("Operation", r.Operation, maxOperation)
	if r.Operation == "" {
		wrong("Request.Operation: empty")
	}
	text("Key", r.Key, maxKey)
	if r.Key == "" {
		wrong("Request.Key: empty")
	}
	switch {
	case r.Hash == "":
		wrong("Request.Hash: empty; without a hash, another request with the same key would get the same answer")
	case !r.Hash.Valid():
		wrong("Request.Hash: not a hash; see HashJSON")
	}
	if r.Retention < 0 {
		wrong("Request.Retention: %v is negative", r.Retention)
	}
	if r.Lease < 0 {
		wrong("Request.Lease: %v is negative", r.Lease)
	}
	if r.WaitMax < 0 {
		wrong("Request.WaitMax: %v is negative", r.WaitMax)
	}
	if len(errs) > 0 {
		return fmt.Errorf("idempotency: %w", errors.Join(errs...))
	}
	return nil
}

// id returns the identity of the request's record.
func (r *Request) id() store.KeyID {
	return store.KeyID{Tenant: r.TenantID, Operation: r.Operation, Key: r.Key}
}

// hidden returns the form of a key for logs and errors. Keys are secrets:
// knowing a key gives access to its answer.
func hidden(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:4])
}

// Find returns the record of a key, and whether a record exists that has not
// expired. It is for inspection; to run an operation, call [Do].
func (k *Keys[T]) Find(ctx context.Context, tenantID, operation, key string) (store.KeyRecord, bool, error) {
	return k.db.FindKey(ctx, store.KeyID{Tenant: tenantID, Operation: operation, Key: key})
}
