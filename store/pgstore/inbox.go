package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// keyLock is the advisory lock of a record that does not exist yet. The
// transaction that creates a record holds the lock until it ends, so that other
// transactions can test the lock instead of waiting at the primary key. The
// locks of two sets of tables differ.
const keyLock = `hashtextextended(i.consumer_group || i.dedup_id::text, '{inbox}'::regclass::oid::bigint)`

// alone waits for the lock of $1, the group, and $2, the key.
const alone = `alone AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(` + keyLock + `) FROM durable, (VALUES ($1::text, $2::uuid)) AS i(consumer_group, dedup_id)
)`

// acceptEvents records events as succeeded. $1: the owner, $2 to $7: groups,
// keys, ids, tenants, types and hashes. The statement returns the events that
// were not accepted: their position, counted from 1, whether they are busy, and
// their record.
//
// The statement does not insert a record that its snapshot shows, because the
// INSERT would wait for a transaction that is changing that record. A record
// that is outside the snapshot, and that no transaction is creating, can still
// exist if it was committed after the snapshot. In that case the statement
// inserts nothing and returns neither busy nor a record, and only a new
// snapshot shows the record. In a transaction with a single snapshot, the
// database reports a serialization failure. Indexes: inbox_of, and then the
// primary key of inbox.
const acceptEvents = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
there AS MATERIALIZED (SELECT * FROM {inbox_of}($2::text[], $3::uuid[])),
input AS MATERIALIZED (
  SELECT i.*, CASE WHEN t.dedup_id IS NULL THEN pg_try_advisory_xact_lock(` + keyLock + `) END AS free
  FROM unnest($2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::uuid[]) WITH ORDINALITY
    AS i(consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, place)
  LEFT JOIN there t ON t.consumer_group = i.consumer_group AND t.dedup_id = i.dedup_id
), taken AS (
  INSERT INTO {inbox} (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, owner, fence, attempts, processed_at, received_at)
  SELECT consumer_group, dedup_id, event_id, nullif(tenant_id, ''), event_type, payload_hash, 1, $1::uuid, 1, 1, clock.now, clock.now
  FROM clock, input WHERE free ORDER BY consumer_group COLLATE "C", dedup_id
  ON CONFLICT (consumer_group, dedup_id) DO NOTHING RETURNING consumer_group, dedup_id
)
SELECT i.place, coalesce(NOT i.free, false), ` + inboxColumns + `
FROM input i LEFT JOIN there r ON r.consumer_group = i.consumer_group AND r.dedup_id = i.dedup_id
WHERE NOT EXISTS (SELECT FROM taken t WHERE t.consumer_group = i.consumer_group AND t.dedup_id = i.dedup_id)`

// acceptEvent is acceptEvents for one event without a record, which is the
// common case. If it returns nothing, acceptEvents finds the reason. $1: the
// owner, $2 to $7: the event.
const acceptEvent = `INSERT INTO {inbox} (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, owner, fence, attempts,
  processed_at, received_at)
SELECT i.consumer_group, i.dedup_id, $4::uuid, nullif($5::text, ''), $6::text, $7::uuid, 1, $1::uuid, 1, 1, clock_timestamp(), clock_timestamp()
FROM (VALUES ($2::text, $3::uuid)) AS i(consumer_group, dedup_id) WHERE pg_try_advisory_xact_lock(` + keyLock + `)
ON CONFLICT (consumer_group, dedup_id) DO NOTHING`

// acceptUnseen reads the records that acceptEvents could not see. $1: groups,
// $2: keys. Index: inbox_of.
const acceptUnseen = `SELECT ` + inboxColumns + ` FROM {inbox_of}($1::text[], $2::uuid[]) AS r`

// heldBy is the fence of an attempt: $1 group, $2 key, $3 owner, $4 fence.
// Primary key of inbox.
const heldBy = `consumer_group = $1::text AND dedup_id = $2::uuid AND status = 0 AND owner = $3::uuid AND fence = $4::bigint`

const succeedAttempt = `UPDATE {inbox} SET status = 1, processed_at = clock_timestamp(), lease_until = NULL
WHERE ` + heldBy

// claimEvent claims an event. $1 to $6: the event, $7: the owner, $8: the lease
// in seconds, $9: the maximum number of attempts, $10: the stored event. Of
// several concurrent claims, one creates or changes the record; the others wait
// for that statement and check the record afterwards. The lease therefore
// starts after the wait. Primary key of inbox.
const claimEvent = `WITH ` + durable + `, ` + alone + `
INSERT INTO {inbox} AS r (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, owner, fence, attempts, lease_until, event)
SELECT $1::text, $2::uuid, $3::uuid, nullif($4::text, ''), $5::text, $6::uuid, 0, $7::uuid, 1, 1,
  clock_timestamp() + $8::double precision * interval '1 second', $10::bytea FROM alone
ON CONFLICT (consumer_group, dedup_id) DO UPDATE SET status = 0, owner = excluded.owner, fence = r.fence + 1, attempts = r.attempts + 1,
  lease_until = clock_timestamp() + $8::double precision * interval '1 second', next_retry_at = NULL, event = coalesce(excluded.event, r.event)
WHERE r.event_type = excluded.event_type AND r.payload_hash = excluded.payload_hash AND r.attempts < $9::integer
  AND (r.status = 0 AND r.lease_until <= clock_timestamp() OR r.status = 2 AND r.next_retry_at <= clock_timestamp())
RETURNING ` + inboxColumns

// markRecordDead marks a record as dead, if it is unchanged since it was
// checked. $1: group, $2: key, $3: fence, $4: attempts, $5: its error, $6: its
// new error. Primary key of inbox.
const markRecordDead = `WITH ` + durable + `
UPDATE {inbox} AS r SET status = 3, lease_until = NULL, next_retry_at = NULL, processed_at = clock_timestamp(), last_error = $6::text FROM durable
WHERE r.consumer_group = $1::text AND r.dedup_id = $2::uuid AND r.fence = $3::bigint AND r.attempts = $4::integer
  AND coalesce(r.last_error, '') = $5::text
  AND (r.status = 0 AND r.lease_until <= clock_timestamp() OR r.status = 2 AND r.next_retry_at <= clock_timestamp())
RETURNING ` + inboxColumns

// failNew creates the record of a failed attempt. $1 to $6: the event, $7:
// whether it is dead, $8: the delay in seconds, $9: the error, $10: the stored
// event.
const failNew = `WITH ` + durable + `, ` + alone + `
INSERT INTO {inbox} (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, fence, attempts,
  next_retry_at, processed_at, last_error, event)
SELECT $1::text, $2::uuid, $3::uuid, nullif($4::text, ''), $5::text, $6::uuid, CASE WHEN $7::boolean THEN 3 ELSE 2 END, 1, 1,
  CASE WHEN NOT $7::boolean THEN clock_timestamp() + $8::double precision * interval '1 second' END,
  CASE WHEN $7::boolean THEN clock_timestamp() END, nullif($9::text, ''), $10::bytea FROM alone
ON CONFLICT (consumer_group, dedup_id) DO NOTHING`

// failHeld records a failed attempt. $5: whether it is dead, $6: the delay in
// seconds, $7: the error, $8: the stored event.
const failHeld = `WITH ` + durable + `
UPDATE {inbox} SET status = CASE WHEN $5::boolean THEN 3 ELSE 2 END, owner = NULL, lease_until = NULL,
  next_retry_at = CASE WHEN NOT $5::boolean THEN clock_timestamp() + $6::double precision * interval '1 second' END,
  processed_at = CASE WHEN $5::boolean THEN clock_timestamp() END, last_error = nullif($7::text, ''), event = coalesce($8::bytea, event)
FROM durable WHERE ` + heldBy

const releaseHeld = `WITH ` + durable + `
UPDATE {inbox} SET status = 2, owner = NULL, lease_until = NULL, next_retry_at = clock_timestamp(), attempts = greatest(attempts - 1, 0)
FROM durable WHERE ` + heldBy

// inOpenTx returns an error unless the transaction is open. [Store.Append] uses
// the same check: outside a transaction, a statement would commit by itself.
func (s *pgxBackend) inOpenTx(ctx context.Context, tx pgx.Tx, what string) error {
	if tx == nil {
		return fmt.Errorf("pgstore: %s: %w", what, waybill.ErrNoTx)
	}
	if err := tx.SendBatch(ctx, &pgx.Batch{}).Close(); err != nil {
		return s.explain(ended(err))
	}
	if _, ours := tx.(*guard); !ours && tx.Conn() != nil && tx.Conn().PgConn().TxStatus() == idle {
		return fmt.Errorf("pgstore: %s: %w: ended by an SQL statement", what, waybill.ErrTxDone)
	}
	return nil
}

// Accept implements [driver.InboxTx].
func (s *pgxBackend) Accept(ctx context.Context, tx pgx.Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	if err := s.inOpenTx(ctx, tx, "accept"); err != nil {
		return nil, err
	}
	return s.accept(ctx, pgxDB{tx}, owner, in)
}

// Accept implements [driver.InboxTx].
func (s *sqlBackend) Accept(ctx context.Context, tx *sql.Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	if tx == nil {
		return nil, fmt.Errorf("pgstore: accept: %w", waybill.ErrNoTx)
	}
	return s.accept(ctx, sqlDB{tx}, owner, in)
}

// accept records events as succeeded in the caller's transaction. Each event
// holds an advisory lock until the transaction ends, and all transactions
// together have max_locks_per_transaction times max_connections locks.
func (c *core) accept(ctx context.Context, tx database, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]driver.AcceptResult, len(in))
	if len(in) == 1 {
		accepted, err := c.did(ctx, tx, c.sql.acceptEvent, append([]any{owner.UUID()}, intakeArgs(in[0])...))
		if err != nil {
			return nil, c.locksHint(err)
		}
		if accepted {
			out[0].Accepted = true
			return out, nil
		}
	}
	for i := range out {
		// The statement returns only events that were not accepted.
		out[i].Accepted = true
	}
	var unseen []int
	r := newInboxRow(tx)
	var place int64
	var busy bool
	rows, err := tx.query(ctx, c.sql.acceptEvents, append([]any{owner.UUID()}, intakes(tx, in)...)...)
	err = collect(rows, err, func() error {
		a := &out[place-1]
		a.Accepted, a.Busy = false, busy
		switch {
		case r.there():
			a.Record = r.record()
		case !busy:
			unseen = append(unseen, int(place-1))
		}
		return nil
	}, append([]any{&place, &busy}, r.dest...)...)
	if err == nil && len(unseen) > 0 {
		err = c.readUnseen(ctx, tx, in, out, unseen)
	}
	if err != nil {
		return nil, c.locksHint(c.explain(ended(err)))
	}
	return out, nil
}

// readUnseen reads the records that were committed after the snapshot of
// acceptEvents. A record that is gone again counts as busy: a retry will find
// the key free.
func (c *core) readUnseen(ctx context.Context, tx database, in []store.InboxEntry, out []driver.AcceptResult, unseen []int) error {
	type name struct {
		group string
		key   waybill.ID
	}
	at := make(map[name]int, len(unseen))
	groups, keys := make([]string, len(unseen)), make([]waybill.ID, len(unseen))
	for i, n := range unseen {
		groups[i], keys[i] = in[n].Group, in[n].Key
		at[name{groups[i], keys[i]}] = n
		out[n].Busy = true
	}
	r := newInboxRow(tx)
	rows, err := tx.query(ctx, c.sql.acceptUnseen, tx.texts(groups), tx.ids(keys))
	return collect(rows, err, func() error {
		a := &out[at[name{r.Group, r.Key}]]
		a.Busy, a.Record = false, r.record()
		return nil
	}, r.dest...)
}

// locksHint adds advice to the error that the server has no advisory locks
// left.
func (c *core) locksHint(err error) error {
	if sqlState(err) == "53200" {
		return fmt.Errorf("%w; accept fewer events in a transaction, or raise max_locks_per_transaction", err)
	}
	return err
}

// intakes splits events into columns: group, key, id, tenant, type and hash.
func intakes(e encoder, in []store.InboxEntry) []any {
	n := len(in)
	groups, tenants, types := make([]string, n), make([]string, n), make([]string, n)
	keys, ids, hashes := make([]waybill.ID, n), make([]waybill.ID, n), make([]waybill.ID, n)
	for i := range in {
		groups[i], tenants[i], types[i] = in[i].Group, in[i].Tenant, in[i].Type
		keys[i], ids[i], hashes[i] = in[i].Key, in[i].Event, in[i].Hash
	}
	return []any{e.texts(groups), e.ids(keys), e.ids(ids), e.texts(tenants), e.texts(types), e.ids(hashes)}
}

// intakeArgs returns an event's columns, in the order of intakes.
func intakeArgs(in store.InboxEntry) []any {
	return []any{in.Group, in.Key.UUID(), in.Event.UUID(), in.Tenant, in.Type, waybill.ID(in.Hash).UUID()}
}

// attemptArgs returns the arguments of heldBy.
func attemptArgs(a driver.Attempt) []any {
	return []any{a.Group, a.Key.UUID(), a.Owner.UUID(), a.Fence}
}

// bytesArg returns bytes as an argument; nil is NULL.
func bytesArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// Succeed implements [driver.InboxTx].
func (s *pgxBackend) Succeed(ctx context.Context, tx pgx.Tx, a driver.Attempt) (bool, error) {
	if err := s.inOpenTx(ctx, tx, "succeed"); err != nil {
		return false, err
	}
	return s.did(ctx, pgxDB{tx}, s.sql.succeedAttempt, attemptArgs(a))
}

// Succeed implements [driver.InboxTx].
func (s *sqlBackend) Succeed(ctx context.Context, tx *sql.Tx, a driver.Attempt) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("pgstore: succeed: %w", waybill.ErrNoTx)
	}
	return s.did(ctx, sqlDB{tx}, s.sql.succeedAttempt, attemptArgs(a))
}

// did runs a statement that creates or changes one record under a condition,
// and reports whether it did.
func (c *core) did(ctx context.Context, db database, query string, args []any) (bool, error) {
	n, err := db.changed(ctx, query, args...)
	if err != nil {
		return false, c.explain(ended(err))
	}
	return n == 1, nil
}

// ClaimEvent implements [driver.Claimer]. If the claim fails, ClaimEvent reads
// the record again, because the record may have changed, and decides by the new
// state. If the record has become free in the meantime, ClaimEvent starts over.
func (c *core) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (store.InboxRecord, bool, error) {
	for {
		args := append(intakeArgs(in), owner.UUID(), seconds(lease), maxAttempts, bytesArg(kept))
		rec, taken, err := c.oneRecord(ctx, c.sql.claimEvent, args...)
		if err != nil || taken {
			return rec, taken, err
		}
		rec, there, err := c.FindRecord(ctx, in.Group, in.Key)
		if err != nil {
			return rec, false, err
		}
		if there && (rec.Type != in.Type || rec.Hash != in.Hash || !free(&rec)) {
			return rec, false, nil
		}
		if !there || rec.Attempts < maxAttempts {
			continue
		}
		rec, gone, err := c.oneRecord(ctx, c.sql.markRecordDead,
			rec.Group, rec.Key.UUID(), rec.Fence, rec.Attempts, rec.LastError, driver.ExceededError(rec.LastError))
		if err != nil || gone {
			return rec, false, err
		}
	}
}

// free reports whether a record could be claimed when it was read, regardless
// of its attempts.
func free(r *store.InboxRecord) bool {
	due := r.NextRetryAt
	if r.State == store.InboxProcessing {
		due = r.LeaseUntil
	}
	return (r.State == store.InboxProcessing || r.State == store.InboxFailed) && !due.IsZero() && !due.After(r.Now)
}

// FailEvent implements [driver.Claimer].
func (c *core) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	query, args := c.sql.failNew, intakeArgs(in)
	if f.Fence != 0 {
		query, args = c.sql.failHeld, attemptArgs(driver.Attempt{Group: in.Group, Key: in.Key, Owner: f.Owner, Fence: f.Fence})
	}
	return c.did(ctx, c.db, query, append(args, f.Dead, seconds(f.Delay), driver.CutError(f.Error), bytesArg(f.Stored)))
}

// ReleaseEvent implements [driver.Claimer].
func (c *core) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	return c.did(ctx, c.db, c.sql.releaseHeld, attemptArgs(a))
}

// IsRetryable implements [driver.RetryClassifier]. It reports true for a
// serialization failure, for a deadlock, and for a key that got a record during
// its run.
func (*core) IsRetryable(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01" || errors.Is(err, errOvertaken)
}

// CheckOpen implements [driver.TxChecker]. It sets a savepoint, which fails
// outside a transaction. It is the last statement before the commit, so the
// savepoint contains nothing.
func (s *sqlBackend) CheckOpen(ctx context.Context, tx *sql.Tx) error {
	err := sqlDB{tx}.exec(ctx, `SAVEPOINT waybill_open`)
	if sqlState(err) == noActiveTransaction {
		return fmt.Errorf("pgstore: %w: ended by an SQL statement", waybill.ErrTxDone)
	}
	return s.explain(ended(err))
}

const noActiveTransaction = "25P01"
