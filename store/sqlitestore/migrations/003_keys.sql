-- One row per tenant, operation and idempotency key. status: 0 in progress, 1
-- succeeded, 2 failed, 3 uncertain. fence increases with every claim. A row
-- whose expires_at has passed counts as absent. taker is the attempt of the
-- transaction that claimed the key; it has no meaning after the end of that
-- transaction. Texts compare as bytes.
CREATE TABLE {idempotency} (
  tenant            TEXT    NOT NULL,
  operation         TEXT    NOT NULL,
  key               TEXT    NOT NULL,
  request_hash      TEXT    NOT NULL,
  status            INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
  owner             BLOB,
  taker             BLOB,
  fence             INTEGER NOT NULL,
  attempts          INTEGER NOT NULL,
  lease_until       INTEGER,
  recovery_point    TEXT,
  recovery_data     BLOB,
  result_ref        TEXT,
  result            BLOB,
  content_type      TEXT,
  lost              INTEGER NOT NULL DEFAULT 0,
  result_expires_at INTEGER,
  error_code        TEXT,
  last_error        TEXT,
  created_at        INTEGER NOT NULL,
  completed_at      INTEGER,
  expires_at        INTEGER,
  PRIMARY KEY (tenant, operation, key)
) STRICT
-- next
-- For inspection of keys that have not succeeded.
CREATE INDEX {index:idempotency_open_idx} ON "{prefix}idempotency" (tenant, operation, key) WHERE status <> 1
-- next
-- The time at which the purge deletes the answer or the row.
CREATE INDEX {index:idempotency_purge_idx} ON "{prefix}idempotency" (iif(result IS NULL, expires_at, min(ifnull(result_expires_at, expires_at), expires_at)))
WHERE expires_at IS NOT NULL
