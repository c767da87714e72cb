package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Keys is the part of a store that package idempotency needs: one record per
// tenant, operation and key.
//
// Times are the database's. Tenant, operation and key compare as bytes. A
// record's fence grows at every claim of the key and never shrinks while the
// record exists. A record is live while it has no expiry or the expiry is in
// the future. An expired record counts as missing, whatever its hash: expiry is
// checked first.
type Keys[T any] interface {
	Beginner[T]
	KeyTx[T]
	KeyClaimer
	KeyRecords
	Local
}

// KeyClaim is a request to run under a key.
type KeyClaim struct {
	store.KeyID
	// Hash is the hash of the request, with its version: "v1:" and 64
	// hexadecimal digits. Another hash under a live record of the same key is a
	// conflict, in every state.
	Hash string
	// Owner is a random id of this attempt; it is stored, so that a commit
	// whose response was lost can be recognized.
	Owner waybill.ID
	// Lease is the time during which no other attempt may take the key.
	Lease time.Duration
	// Retention is a hint: the time for which the answer will be kept, if
	// known. A store that sorts records by expiry can then do so at once
	// instead of when the answer is stored.
	Retention time.Duration
}

// KeyAttempt identifies an attempt that has taken a key.
type KeyAttempt struct {
	store.KeyID
	Owner waybill.ID
	Fence int64
}

// KeyTx works inside the caller's transaction.
type KeyTx[T any] interface {
	// TakeKey takes a key in the transaction that will contain its answer. It
	// succeeds if there is no live record, a failed one, or one in processing
	// whose lease has expired. Unless the transaction commits with an answer
	// ([KeyTx.StoreAnswer]), nothing changes.
	//
	// TakeKey never waits for another transaction that has taken the same key:
	// it reports the key as busy. It may wait for a claim that is being
	// committed. Rarely, it may report a key as busy that is not. After an
	// error the transaction can only be rolled back. A transaction that has
	// ended gives [waybill.ErrTxDone].
	TakeKey(ctx context.Context, tx T, c KeyClaim) (KeyTaken, error)
	// StoreAnswer stores the answer of an attempt and ends the attempt as
	// succeeded, in the caller's transaction. The key must have been taken by
	// this transaction, or be claimed and still in processing under this owner
	// and fence, whatever its lease. Otherwise StoreAnswer reports false, and
	// the transaction must be rolled back.
	StoreAnswer(ctx context.Context, tx T, a KeyAttempt, answer KeyAnswer) (bool, error)
	// SavePoint stores the progress of a claimed attempt, under the same
	// conditions as StoreAnswer.
	SavePoint(ctx context.Context, tx T, a KeyAttempt, p store.KeyPoint) (bool, error)
}

// AnswerAtCommit may be implemented by stores whose transactions can store an
// answer in the round trip of the commit.
type AnswerAtCommit[T any] interface {
	// StoreAnswerAtCommit is [KeyTx.StoreAnswer] for an answer that ends its
	// transaction: the answer is stored when the transaction commits. If the
	// attempt does not hold the key then, the commit fails with
	// [waybill.ErrLeaseLost] and leaves nothing. StoreAnswerAtCommit reports
	// false if the transaction does not support it.
	StoreAnswerAtCommit(ctx context.Context, tx T, a KeyAttempt, answer KeyAnswer) (bool, error)
}

// KeyTaken is the result of TakeKey.
type KeyTaken struct {
	// Attempt is set if the key was taken.
	Attempt KeyAttempt
	Taken   bool
	// Busy: another transaction has taken the key.
	Busy bool
	// Record is the existing record, if the key is neither taken nor busy. If
	// the record has an answer, the fields of [KeyPeeker.PeekKey] suffice.
	Record store.KeyRecord
}

// KeyAnswer is the answer that repeated requests receive.
type KeyAnswer struct {
	// Ref identifies the created object, at most 255 bytes.
	Ref string
	// Result and ContentType are the answer, byte for byte. Lost means that the
	// answer existed and could not be stored: repeated requests are rejected,
	// and nothing runs again.
	Result      []byte
	ContentType string
	Lost        bool
	// Retention is how long the record is kept from now; ResultRetention, if
	// greater than 0, is how long the answer is kept.
	Retention       time.Duration
	ResultRetention time.Duration
}

// KeyClaimer works outside the caller's transaction. Each method is one
// transaction and is durable when it returns.
type KeyClaimer interface {
	// ClaimKey claims a key for an attempt and counts the attempt. It succeeds
	// if there is no live record, a failed one, or one in processing whose
	// lease has expired. It returns the resulting record and whether the key
	// was claimed; for a new record, Now and LeaseUntil may be missing. An
	// uncertain record is never claimed. A live record with another hash is not
	// changed. The saved progress of earlier attempts ([store.KeyPoint]) stays,
	// unless the record had expired.
	ClaimKey(ctx context.Context, c KeyClaim) (store.KeyRecord, bool, error)
	// EndKey ends an attempt that is still in processing under this owner and
	// fence, whatever its lease: a takeover draws the next fence. It reports
	// whether it changed anything: a late end never overwrites the result of
	// another attempt.
	EndKey(ctx context.Context, a KeyAttempt, end KeyEnd) (bool, error)
	// RenewKey restarts the lease from now if the attempt still holds the key.
	// An expired lease can be renewed as long as no other attempt has taken the
	// key.
	RenewKey(ctx context.Context, a KeyAttempt, lease time.Duration) (bool, error)
}

// KeyPeeker may be implemented by stores for which a read costs less than a
// failed claim: repeated requests are answered from the read.
type KeyPeeker interface {
	// PeekKey returns a live record that has succeeded and still has its
	// answer, with the fields that a repeated request needs: Hash, State, Ref,
	// Result and ContentType. It reports whether there is one; if not, the
	// caller has to take or claim the key.
	PeekKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error)
	// PeekAlways reports whether a read costs so little compared with a failed
	// claim that it precedes every claim.
	PeekAlways() bool
}

// KeyEnd is the end of an attempt.
type KeyEnd struct {
	// State is [store.KeySucceeded], [store.KeyFailed] or [store.KeyUncertain].
	State store.KeyState
	// Answer is the answer of a success. Its Retention applies to a failure
	// too; an uncertain record does not expire.
	Answer KeyAnswer
	// Code and Error describe a failure or an uncertain end. The store
	// truncates Error to 4000 bytes.
	Code, Error string
}

// KeyRecords inspects and maintains records.
type KeyRecords interface {
	// FindKey returns a live record, and whether there is one.
	FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error)
	// ListKeys returns matching live records, without their results, in the
	// order of tenant, operation and key, after a given key.
	ListKeys(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error)
	// KeyStats counts records that did not succeed.
	KeyStats(ctx context.Context) (store.KeyStats, error)
	// ResolveKey resolves an uncertain record: with [store.KeyFailed] the key
	// may be taken again, with [store.KeySucceeded] the given answer is stored.
	// It reports whether the record was uncertain.
	ResolveKey(ctx context.Context, id store.KeyID, end KeyEnd) (bool, error)
	// PurgeKeys deletes at most limit expired records and expired answers, and
	// returns their number. It never changes records in processing or uncertain
	// records. It may run on several nodes concurrently.
	PurgeKeys(ctx context.Context, limit int) (int, error)
}
