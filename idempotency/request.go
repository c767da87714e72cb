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

// Request is what a caller wants to run once. Tenant, operation and key together name it; they compare as bytes.
type Request struct {
	// TenantID separates tenants, at most 64 bytes. It may be empty, and is never taken from the context: a key that is looked up under the wrong
	// tenant gives away another's answer, so whoever calls has to say it.
	TenantID string
	// Operation is what is done, at most 128 bytes: "ORDER_CREATE". The same key under another operation is another key.
	Operation string
	// Key is the caller's, 1 to 255 bytes.
	Key string
	// Hash is of everything in the request that decides what it does; see [HashJSON] and [HashFields].
	Hash Hash
	// TTL is for how long a repeat gets the answer, from its completion. Defaults to [Config.TTL].
	TTL time.Duration
	// WaitMax is for how long to wait for somebody else who is at it, instead of returning [waybill.ErrInProgress] at once. If he fails, one of those
	// who wait runs it. Defaults to not waiting.
	WaitMax time.Duration
}

const (
	maxTenant    = 64
	maxOperation = 128
	maxKey       = 255
	maxRef       = 255
)

// Validate returns what is wrong with the request: every field at once.
func (r Request) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	text := func(field, s string, most int) {
		if len(s) > most {
			wrong("Request.%s has %d bytes, and at most %d are allowed", field, len(s), most)
		}
		if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			wrong("Request.%s is not valid UTF-8 without NUL", field)
		}
	}
	text("TenantID", r.TenantID, maxTenant)
	text("Operation", r.Operation, maxOperation)
	text("Key", r.Key, maxKey)
	if r.Operation == "" {
		wrong("Request.Operation is empty")
	}
	if r.Key == "" {
		wrong("Request.Key is empty")
	}
	switch {
	case r.Hash == "":
		wrong("Request.Hash is empty: without it, another request under the same key would get the first one's answer")
	case !r.Hash.Valid():
		wrong("Request.Hash is not a hash; see HashJSON")
	}
	if r.TTL < 0 {
		wrong("Request.TTL: %v is negative", r.TTL)
	}
	if r.WaitMax < 0 {
		wrong("Request.WaitMax: %v is negative", r.WaitMax)
	}
	if len(errs) > 0 {
		return fmt.Errorf("idempotency: %w", errors.Join(errs...))
	}
	return nil
}

// id names the request's record.
func (r *Request) id() store.KeyID {
	return store.KeyID{Tenant: r.TenantID, Operation: r.Operation, Key: r.Key}
}

// hidden stands for a key in logs and errors. Keys are secrets: who knows one can read its answer.
func hidden(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:4])
}

// Find returns the record of a key, and whether there is one that has not expired. For looking; who wants to run something calls [Do].
func (k *Keys[T]) Find(ctx context.Context, tenantID, operation, key string) (store.KeyRecord, bool, error) {
	return k.db.FindKey(ctx, store.KeyID{Tenant: tenantID, Operation: operation, Key: key})
}
