package store

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Keys is what package idempotency needs of a store: one record per tenant, operation and key.
//
// Times are the database's. Tenant, operation and key compare as bytes. A record's fence grows whenever somebody takes the key, and never
// shrinks while the record lives. A record is live while its expiry is none or in the future; one that is not is as good as none, whatever
// its hash: expiry is looked at first.
type Keys[T any] interface {
	Beginner[T]
	KeyTx[T]
	KeyClaimer
	KeyRecords
	Local
}

// KeyID names a record.
type KeyID struct {
	Tenant    string // at most 64 bytes, may be empty
	Operation string // at most 128 bytes
	Key       string // at most 255 bytes
}

// KeyClaim is the wish to run what a key stands for.
type KeyClaim struct {
	KeyID
	// Hash is of the request, with its version: "v1:" and 64 hexadecimal digits. Another hash under a live record of the same key is a
	// conflict, in every state.
	Hash string
	// Owner is the random name of this attempt; it is stored, so that a commit whose answer was lost can be recognised.
	Owner waybill.ID
	// Lease is for how long nobody else may take the key.
	Lease time.Duration
	// TTL is for how long the answer will be kept, if that is known: a hint. A store that sorts records by when they expire can do so at
	// once, and does not have to when the answer comes.
	TTL time.Duration
}

// KeyAttempt names an attempt that was taken.
type KeyAttempt struct {
	KeyID
	Owner waybill.ID
	Fence int64
}

// KeyTx works inside the caller's transaction.
type KeyTx[T any] interface {
	// TakeKey takes a key in the transaction that will hold its answer: if there is no live record, or a failed one, or one that is being
	// processed whose lease has run out. Unless the transaction commits with an answer ([KeyTx.StoreAnswer]), nothing has happened.
	//
	// It never waits for another transaction that has taken the same key: that one is busy. It may wait for a claim that is being committed. It may report one as busy that is not, if that
	// is rare. After an error the transaction can only be rolled back. A transaction that has ended is [waybill.ErrTxDone].
	TakeKey(ctx context.Context, tx T, c KeyClaim) (KeyTaken, error)
	// StoreAnswer stores the answer of an attempt and ends it as succeeded, in the caller's transaction: of a key that this transaction took, or
	// of a claimed one that is still being processed under this owner and fence, whatever its lease. It reports false if it is not; then the
	// transaction must be rolled back.
	StoreAnswer(ctx context.Context, tx T, a KeyAttempt, answer KeyAnswer) (bool, error)
	// SavePoint stores how far a claimed attempt has come, under the same conditions as StoreAnswer.
	SavePoint(ctx context.Context, tx T, a KeyAttempt, p KeyPoint) (bool, error)
}

// AnswerAtCommit may be implemented by stores whose transactions can store an answer in the round trip of their commit.
type AnswerAtCommit[T any] interface {
	// StoreAnswerAtCommit is [KeyTx.StoreAnswer] for an answer that is the last thing in its transaction: it is stored when the transaction commits, and
	// if the attempt does not hold the key then, the commit fails with [waybill.ErrLeaseLost] and nothing is left. It reports false if
	// the transaction is not one that can.
	StoreAnswerAtCommit(ctx context.Context, tx T, a KeyAttempt, answer KeyAnswer) (bool, error)
}

// KeyTaken says what became of a wish.
type KeyTaken struct {
	// Attempt is set if the key was taken.
	Attempt KeyAttempt
	Taken   bool
	// Busy: another transaction is at it.
	Busy bool
	// Record is what there was, if it is neither.
	Record KeyRecord
}

// KeyAnswer is what a repeat gets.
type KeyAnswer struct {
	// Ref names what was made, at most 255 bytes.
	Ref string
	// Result and ContentType are the answer, byte for byte. Lost says that there was one and it could not be kept: a repeat is told so, and
	// nothing runs again.
	Result      []byte
	ContentType string
	Lost        bool
	// TTL is for how long the record lives, from now on; ResultTTL, if it is greater than 0, is for how long the answer does.
	TTL       time.Duration
	ResultTTL time.Duration
}

// KeyPoint is how far an attempt has come.
type KeyPoint struct {
	// Name is of the last phase that committed, at most 128 bytes.
	Name string
	// Data is what all phases so far have to remember.
	Data []byte
}

// KeyClaimer works outside the caller's transaction. Each method is one transaction, and on disk when it returns.
type KeyClaimer interface {
	// ClaimKey takes a key for an attempt, and counts it: if there is no live record, or a failed one, or one that is being processed whose
	// lease has run out. It returns the record as it is then, and whether it was taken; of a record that it has just made, Now and LeaseUntil
	// may be missing. An uncertain record is never taken. A live record of another hash is left as it is. What earlier attempts saved
	// ([KeyPoint]) stays, unless the record had expired.
	ClaimKey(ctx context.Context, c KeyClaim) (KeyRecord, bool, error)
	// EndKey ends an attempt that is still being processed under this owner and fence, whatever its lease: whoever takes the key over draws the
	// next fence. It reports whether it did anything: a late end never overwrites what another attempt has stored.
	EndKey(ctx context.Context, a KeyAttempt, end KeyEnd) (bool, error)
	// RenewKey makes the lease run from now on, if the attempt still holds the key: also one that has run out, as long as no other attempt has
	// taken the key over.
	RenewKey(ctx context.Context, a KeyAttempt, lease time.Duration) (bool, error)
}

// KeyPeeker may be implemented by stores for which a look costs less than a claim that fails: repeats are answered from it.
type KeyPeeker interface {
	// PeekKey returns a live record that has succeeded and whose answer is still there, with what a repeat needs of it: Hash, State, Ref, Result
	// and ContentType. It reports whether there is one; if not, the key has to be taken, or claimed, to know more.
	PeekKey(ctx context.Context, id KeyID) (KeyRecord, bool, error)
	// PeekAlways reports whether a look costs next to nothing compared with a claim that fails, so that it comes before every claim.
	PeekAlways() bool
}

// KeyEnd is how an attempt ended.
type KeyEnd struct {
	// State is [KeySucceeded], [KeyFailed] or [KeyUncertain].
	State KeyState
	// Answer is of a success. Its TTL counts for a failure, too; an uncertain record does not expire.
	Answer KeyAnswer
	// Code and Error are of the others. The error is cut to 4000 bytes by the store.
	Code, Error string
}

// KeyState is where a record stands.
type KeyState int

// States of a record. The numbers are stored.
const (
	// KeyProcessing: an attempt is under way, or was when its process ended.
	KeyProcessing KeyState = 0
	// KeySucceeded: the answer is stored, or lost.
	KeySucceeded KeyState = 1
	// KeyFailed: the key may be taken again.
	KeyFailed KeyState = 2
	// KeyUncertain: it failed after something had happened that must not happen twice. An operator decides.
	KeyUncertain KeyState = 3
)

func (s KeyState) String() string {
	switch s {
	case KeyProcessing:
		return "processing"
	case KeySucceeded:
		return "succeeded"
	case KeyFailed:
		return "failed"
	case KeyUncertain:
		return "uncertain"
	}
	return "unknown"
}

// KeyRecord is the record of a key. Times that do not apply are zero.
type KeyRecord struct {
	KeyID
	Hash     string
	State    KeyState
	Owner    waybill.ID
	Fence    int64
	Attempts int
	Point    KeyPoint
	// Ref, Result, ContentType and Lost are of a success; see [KeyAnswer]. ResultExpired says that the answer has outlived its own time, and
	// Result is empty then.
	Ref           string
	Result        []byte
	ContentType   string
	Lost          bool
	ResultExpired bool
	Code          string
	LastError     string
	// LeaseUntil is of a record that is being processed.
	LeaseUntil time.Time
	// CreatedAt never changes while the record lives. It may be by the clock of the process that made the record.
	CreatedAt   time.Time
	CompletedAt time.Time
	// ExpiresAt is zero while the key is being processed, or uncertain.
	ExpiresAt time.Time
	// Now is the database's time of this answer.
	Now time.Time
}

// KeyRecords is for looking at records and keeping them in order.
type KeyRecords interface {
	// FindKey returns a live record, and whether there is one.
	FindKey(ctx context.Context, id KeyID) (KeyRecord, bool, error)
	// ListKeys returns live records that match, without their results, in the order of tenant, operation and key, after one of them.
	ListKeys(ctx context.Context, f KeyFilter, after KeyID, limit int) ([]KeyRecord, error)
	// KeyStats counts records that did not succeed.
	KeyStats(ctx context.Context) (KeyStats, error)
	// ResolveKey decides about an uncertain record: with [KeyFailed] the key may be taken again, with [KeySucceeded] the answer is the one
	// given. It reports whether the record was uncertain.
	ResolveKey(ctx context.Context, id KeyID, end KeyEnd) (bool, error)
	// PurgeKeys deletes at most limit records that have expired, and answers that have outlived their own time, and returns how many. Records
	// that are being processed or uncertain are never touched. It may run on several nodes at a time.
	PurgeKeys(ctx context.Context, limit int) (int, error)
}

// KeyFilter chooses records. Zero fields match everything.
type KeyFilter struct {
	Tenant, Operation string
	// States are those looked for; none means all but succeeded.
	States []KeyState
}

// KeyStats is how the keys stand.
type KeyStats struct {
	Processing, Failed, Uncertain int64
	// Lapsed counts those being processed whose lease has run out.
	Lapsed int64
	// OldestLapsed is for how long the oldest of these has been.
	OldestLapsed time.Duration
}
