-- One record per tenant, operation and idempotency key, which compare as bytes. Status is 0 while it is being processed, 1 when it has
-- succeeded, 2 when it has failed, 3 when it is uncertain. Fence grows whenever somebody takes the key. A record whose expires_at has
-- passed is as good as none. Taker is the attempt that a transaction has taken the key for, and nobody's once that transaction has ended.
-- Purge_at is when there is something to delete: the answer, or the record.
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
  purge_at          timestamptz GENERATED ALWAYS AS (CASE WHEN result IS NULL THEN expires_at ELSE least(result_expires_at, expires_at) END) STORED,
  CONSTRAINT "{prefix}idempotency_pkey" PRIMARY KEY (tenant, operation, key)
)
-- next
-- What did not succeed, for whoever looks at it, and what can be deleted, by when. A record that succeeds leaves the one and enters the other,
-- so its update is not a HOT one. Without these indexes counting what is stuck, and deleting what is old, would read every answer that is
-- kept; with them, an update that ends an attempt also writes two index entries.
CREATE INDEX "{prefix}idempotency_open_idx" ON {idempotency} (tenant, operation, key) WHERE status <> 1
-- next
CREATE INDEX "{prefix}idempotency_purge_idx" ON {idempotency} (purge_at) WHERE purge_at IS NOT NULL
