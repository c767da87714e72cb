-- One row per tenant, operation and idempotency key. Status is 0 while it is being processed, 1 when it has succeeded, 2 when it has failed,
-- 3 when it is uncertain. Fence grows whenever somebody takes the key. A row whose expires_at has passed is as good as none. Taker is the
-- attempt that a transaction has taken the key for, and nobody's once that transaction has ended. Texts compare as bytes.
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
-- What has not succeeded, for whoever looks at it.
CREATE INDEX {index:idempotency_open_idx} ON "{prefix}idempotency" (tenant, operation, key) WHERE status <> 1
-- next
-- What can be deleted, by when: the answer, or the row.
CREATE INDEX {index:idempotency_purge_idx} ON "{prefix}idempotency" (iif(result IS NULL, expires_at, min(ifnull(result_expires_at, expires_at), expires_at)))
WHERE expires_at IS NOT NULL
