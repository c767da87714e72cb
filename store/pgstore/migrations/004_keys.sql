-- One row per tenant, operation and idempotency key; all three compare as
-- bytes. status: 0 in progress, 1 succeeded, 2 failed, 3 uncertain. fence
-- increases with every claim. A row whose expires_at has passed counts as
-- absent. taker is the attempt of the transaction that claimed the key; it has
-- no meaning after the end of that transaction.
--
-- purge_at is the time at which the purge looks at the row and deletes the
-- answer or the row. If both must stay, the purge sets a later time. A claim
-- sets purge_at, and the end of an attempt only lowers it, so that the update
-- at the end of an attempt changes no index.
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
-- The first index serves the inspection of keys that did not succeed, the
-- second the purge. Without them both would read every stored answer. A claim
-- enters the first index and leaves it at success, so that update is not a HOT
-- update. A key that is claimed and answered in one transaction never enters
-- it, and its update can be a HOT update.
CREATE INDEX "{prefix}idempotency_open_idx" ON {idempotency} (tenant, operation, key) WHERE status <> 1
-- next
CREATE INDEX "{prefix}idempotency_purge_idx" ON {idempotency} (purge_at)
