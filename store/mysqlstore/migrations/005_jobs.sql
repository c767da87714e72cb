-- One row per reconciliation job: its owner, its lease and the result of its
-- last run.
CREATE TABLE IF NOT EXISTS {job} (
  name        VARBINARY(128) NOT NULL,
  owner       BINARY(16),
  fence       BIGINT         NOT NULL,
  lease_until DATETIME(6),
  started_at  DATETIME(6)    NOT NULL,
  ended_at    DATETIME(6),
  next_at     DATETIME(6),
  found       BIGINT         NOT NULL DEFAULT 0,
  sent        BIGINT         NOT NULL DEFAULT 0,
  skipped     BIGINT         NOT NULL DEFAULT 0,
  failed      BIGINT         NOT NULL DEFAULT 0,
  last_error  TEXT,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Events that jobs have sent. A job skips an event whose key has a row. key_id
-- is derived from the tenant and the dedup key of the event.
CREATE TABLE IF NOT EXISTS {job_sent} (
  job      VARBINARY(128) NOT NULL,
  key_id   BINARY(16)     NOT NULL,
  event_id BINARY(16)     NOT NULL,
  sent_at  DATETIME(6)    NOT NULL,
  PRIMARY KEY (job, key_id),
  KEY sent_at (job, sent_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
