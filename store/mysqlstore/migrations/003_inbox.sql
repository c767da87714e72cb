-- What consumer groups have received: one row per group and event. Status is 0 while it is being processed, 1 when it has succeeded, 2 when
-- it has failed and is tried again at next_retry_at, 3 when it is dead. The dedup id is the event's id, or is made of its dedup key. Fence
-- grows whenever somebody takes the event. The event itself is there only where the group keeps it for its retries.
--
-- These servers have no partial indexes, and every row that succeeds pays for each of them. So there is one, on the time that matters in
-- each status: when a lease runs out, when a retry is due, when it ended.
CREATE TABLE IF NOT EXISTS {inbox} (
  consumer_group VARBINARY(255) NOT NULL,
  dedup_id       BINARY(16)     NOT NULL,
  event_id       BINARY(16)     NOT NULL,
  tenant_id      VARBINARY(64)  NOT NULL,
  event_type     VARBINARY(128) NOT NULL,
  payload_hash   BINARY(16)     NOT NULL,
  status         SMALLINT       NOT NULL,
  owner          BINARY(16),
  fence          BIGINT         NOT NULL,
  attempts       INT            NOT NULL,
  lease_until    DATETIME(6),
  next_retry_at  DATETIME(6),
  processed_at   DATETIME(6),
  received_at    DATETIME(6)    NOT NULL,
  last_error     TEXT,
  event          LONGBLOB,
  status_at      DATETIME(6)    GENERATED ALWAYS AS (CASE status WHEN 0 THEN lease_until WHEN 2 THEN next_retry_at ELSE processed_at END) STORED,
  PRIMARY KEY (consumer_group, dedup_id),
  KEY status (status, consumer_group, status_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
