-- One record per tenant, operation and idempotency key, which compare as bytes. Status is 0 while it is being processed, 1 when it has
-- succeeded, 2 when it has failed, 3 when it is uncertain. Fence grows whenever somebody takes the key. A record whose expires_at has
-- passed is as good as none. Taker is the attempt that a transaction has taken the key for, and nobody's once that transaction has ended.
-- Purge_at is when there may be something to delete, the answer or the record; what must stay is put off then. It is set by whoever takes the key,
-- and lowered if that was too late, so that the update that ends an attempt changes no index by it.
CREATE TABLE {idempotency} (
  tenant            bytea            NOT NULL,
  operation         bytea            NOT NULL,
  key               bytea            NOT NULL,
  request_hash      text COLLATE "C" NOT NULL,
  status            smallint         NOT NULL,
  owner             uuid,
  taker             uuid,
  fence             bigint           NOT NULL,
  attempts          integer          NOT NULL,
  lease_until       timestamptz,
  recovery_point    bytea,
  recovery_data     bytea,
  result_ref        bytea,
  result            bytea,
  content_type      bytea,
  lost              boolean          NOT NULL DEFAULT false,
  result_expires_at timestamptz,
  error_code        text,
  last_error        text,
  created_at        timestamptz      NOT NULL DEFAULT clock_timestamp(),
  completed_at      timestamptz,
  expires_at        timestamptz,
  purge_at          timestamptz      NOT NULL,
  CONSTRAINT "{prefix}idempotency_pkey" PRIMARY KEY (tenant, operation, key)
)
-- next
-- What did not succeed, for whoever looks at it, and what can be deleted, by when. Without these indexes counting what is stuck, and deleting what
-- is old, would read every answer that is kept. A claim enters the first and leaves it when it succeeds, so that update is not a HOT one; a key
-- that is taken and kept in one transaction never is in it, and its update can be one.
CREATE INDEX "{prefix}idempotency_open_idx" ON {idempotency} (tenant, operation, key) WHERE status <> 1
-- next
CREATE INDEX "{prefix}idempotency_purge_idx" ON {idempotency} (purge_at)
