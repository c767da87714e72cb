package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
)

// The table and the statements of a careful implementation by hand: requests
// are compared, a run has a lease and an owner, an answer expires, and an index
// supports the purge of expired answers. Without that index the work would not
// be the same. An answer expires a day after the claim: then the update that
// ends a run changes no indexed column, and is as cheap as possible. Waybill's
// day begins with the answer.
const (
	handKeys = `CREATE TABLE hand_keys (tenant text NOT NULL, operation text NOT NULL, key text NOT NULL, request_hash text NOT NULL,
 status smallint NOT NULL, owner uuid NOT NULL, lease_until timestamptz, result bytea, content_type text, created_at timestamptz NOT NULL,
 expires_at timestamptz NOT NULL, PRIMARY KEY (tenant, operation, key))`
	handExpiry = `CREATE INDEX ON hand_keys (expires_at)`
	handClaim  = `INSERT INTO hand_keys (tenant, operation, key, request_hash, status, owner, lease_until, created_at, expires_at)
VALUES ($1, $2, $3, $4, 0, $5, now() + interval '30 seconds', now(), now() + interval '1 day') ON CONFLICT DO NOTHING`
	handEnd = `UPDATE hand_keys SET status = 1, lease_until = NULL, result = $5, content_type = 'application/json'
WHERE tenant = $1 AND operation = $2 AND key = $3 AND owner = $4 AND status = 0 AND lease_until > clock_timestamp()`
	handRead = `SELECT request_hash, status, expires_at, content_type, result FROM hand_keys WHERE tenant = $1 AND operation = $2 AND key = $3`

	// These statements multiply one answer.
	handFill = `INSERT INTO hand_keys (tenant, operation, key, request_hash, status, owner, result, content_type, created_at, expires_at)
SELECT tenant, operation, 'answered-' || n, request_hash, status, owner, result, content_type, created_at, expires_at FROM hand_keys, generate_series(1, $1) n`
	keysFill = `INSERT INTO waybill_idempotency (tenant, operation, key, request_hash, status, owner, fence, attempts, result_ref, result, content_type,
 lost, created_at, completed_at, expires_at, purge_at)
SELECT tenant, operation, convert_to('answered-' || n, 'UTF8'), request_hash, status, owner, fence, attempts, result_ref, result, content_type,
 lost, created_at, completed_at, expires_at, purge_at FROM waybill_idempotency, generate_series(1, $1) n`
)

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// byHand claims the key, places the order in a transaction of its own, and
// stores the answer.
func (f *field) byHand(ctx context.Context, key string) error {
	owner := pgtype.UUID{Bytes: waybill.NewID(), Valid: true}
	if err := claimByHand(ctx, f.pool, key, owner); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return order(ctx, tx) }); err != nil {
		return err
	}
	return endByHand(ctx, f.pool, key, owner)
}

// byHandTx does the same in one transaction.
func (f *field) byHandTx(ctx context.Context, key string) error {
	owner := pgtype.UUID{Bytes: waybill.NewID(), Valid: true}
	return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if err := claimByHand(ctx, tx, key, owner); err != nil {
			return err
		}
		if err := order(ctx, tx); err != nil {
			return err
		}
		return endByHand(ctx, tx, key, owner)
	})
}

func claimByHand(ctx context.Context, db execer, key string, owner pgtype.UUID) error {
	return one(db.Exec(ctx, handClaim, keyTenant, keyOperation, key, keyHash, owner))
}

func endByHand(ctx context.Context, db execer, key string, owner pgtype.UUID) error {
	body, err := json.Marshal(made)
	if err != nil {
		return err
	}
	return one(db.Exec(ctx, handEnd, keyTenant, keyOperation, key, owner, body))
}

// mixByHandTx is byHandTx for keys that may have an answer: after a conflict it
// reads the answer in the same transaction.
func (f *field) mixByHandTx(ctx context.Context, key string) error {
	owner := pgtype.UUID{Bytes: waybill.NewID(), Valid: true}
	return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, handClaim, keyTenant, keyOperation, key, keyHash, owner)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return readAnswer(ctx, tx, key)
		}
		if err := order(ctx, tx); err != nil {
			return err
		}
		return endByHand(ctx, tx, key, owner)
	})
}

// mixByHand is byHand for keys that may have an answer.
func (f *field) mixByHand(ctx context.Context, key string) error {
	owner := pgtype.UUID{Bytes: waybill.NewID(), Valid: true}
	tag, err := f.pool.Exec(ctx, handClaim, keyTenant, keyOperation, key, keyHash, owner)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return readAnswer(ctx, f.pool, key)
	}
	if err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { return order(ctx, tx) }); err != nil {
		return err
	}
	return endByHand(ctx, f.pool, key, owner)
}

// one checks that a statement has changed one row.
func one(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.RowsAffected() != 1 {
		err = errNotOurs
	}
	return err
}

// readByHand reads a stored answer.
func (f *field) readByHand(ctx context.Context, key string) error {
	return readAnswer(ctx, f.pool, key)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readAnswer(ctx context.Context, db querier, key string) error {
	var hash, contentType string
	var status int16
	var expires time.Time
	var body []byte
	err := db.QueryRow(ctx, handRead, keyTenant, keyOperation, key).Scan(&hash, &status, &expires, &contentType, &body)
	if err != nil {
		return err
	}
	var got placed
	if err := json.Unmarshal(body, &got); err != nil {
		return err
	}
	if hash != keyHash || status != 1 || !expires.After(time.Now()) || got != made {
		return errNotOurs
	}
	return nil
}

// answers returns a function that creates stored answers.
func (f *field) answers(keys *idempotency.Keys[pgx.Tx], n int) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := f.exec(ctx, `TRUNCATE orders, hand_keys, waybill_idempotency`); err != nil {
			return err
		}
		if err := f.byHand(ctx, "one"); err != nil {
			return err
		}
		req := idempotency.Request{TenantID: keyTenant, Operation: keyOperation, Key: "one", Hash: keyHash}
		if _, err := idempotency.Do(ctx, keys, req, func(context.Context) (placed, error) { return made, nil }); err != nil {
			return err
		}
		for _, fill := range []string{handFill, keysFill} {
			if _, err := f.pool.Exec(ctx, fill, n); err != nil {
				return err
			}
		}
		return f.exec(ctx, `VACUUM ANALYZE hand_keys`, `VACUUM ANALYZE waybill_idempotency`)
	}
}
