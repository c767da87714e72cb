-- One row per tenant, operation and idempotency key; all three compare as
-- bytes. status: 0 in progress, 1 succeeded, 2 failed, 3 uncertain. fence
-- increases with every claim. A row whose expires_at has passed counts as
-- absent. taker marks the last claim of the key; the mark of a transaction has
-- no meaning after the end of that transaction.
--
-- The table has one index, as the inbox has, on the time that matters for the
-- status: the end of the lease, or the time at which the purge deletes the
-- answer or the row.
CREATE TABLE IF NOT EXISTS {idempotency} (
  tenant            VARBINARY(64)  NOT NULL,
  operation         VARBINARY(128) NOT NULL,
  idem_key          VARBINARY(255) NOT NULL,
  request_hash      VARBINARY(128) NOT NULL,
  status            SMALLINT       NOT NULL,
  owner             BINARY(16),
  taker             BINARY(16),
  fence             BIGINT         NOT NULL,
  attempts          INT            NOT NULL,
  lease_until       DATETIME(6),
  recovery_point    VARBINARY(128),
  recovery_data     LONGBLOB,
  result_ref        VARBINARY(255),
  result            LONGBLOB,
  content_type      VARBINARY(1024),
  lost              BOOLEAN        NOT NULL DEFAULT FALSE,
  result_expires_at DATETIME(6),
  error_code        TEXT,
  last_error        TEXT,
  created_at        DATETIME(6)    NOT NULL,
  completed_at      DATETIME(6),
  expires_at        DATETIME(6),
  status_at         DATETIME(6)    GENERATED ALWAYS AS (CASE WHEN status = 0 THEN lease_until
    WHEN result IS NULL OR result_expires_at IS NULL THEN expires_at ELSE LEAST(result_expires_at, expires_at) END) STORED,
  PRIMARY KEY (tenant, operation, idem_key),
  KEY status (status, status_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
