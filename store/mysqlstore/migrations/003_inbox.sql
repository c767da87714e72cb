-- One row per consumer group and event. status: 0 in progress, 1 succeeded, 2
-- failed with a retry at next_retry_at, 3 dead. dedup_id is the id of the
-- event, or is derived from its dedup key. fence increases with every claim.
-- event is set only if the group keeps events for its retries.
--
-- These servers have no partial indexes, and every index adds cost to every
-- successful row. The table therefore has one index, on the time that matters
-- for the status: the end of the lease, the time of the retry, or the end of
-- the processing.
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
