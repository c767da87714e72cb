-- One row per consumer group and event. status: 0 in progress, 1 succeeded, 2
-- failed with a retry at next_retry_at, 3 dead. dedup_id is the id of the
-- event, or is derived from its dedup key. fence increases with every claim.
-- event is set only if the group keeps events for its retries. Texts compare as
-- bytes.
CREATE TABLE {inbox} (
  consumer_group TEXT    NOT NULL,
  dedup_id       BLOB    NOT NULL CHECK (length(dedup_id) = 16),
  event_id       BLOB    NOT NULL CHECK (length(event_id) = 16),
  tenant_id      TEXT    NOT NULL,
  event_type     TEXT    NOT NULL,
  payload_hash   BLOB    NOT NULL CHECK (length(payload_hash) = 16),
  status         INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
  owner          BLOB,
  fence          INTEGER NOT NULL,
  attempts       INTEGER NOT NULL,
  lease_until    INTEGER,
  next_retry_at  INTEGER,
  processed_at   INTEGER,
  received_at    INTEGER NOT NULL,
  last_error     TEXT,
  event          BLOB,
  PRIMARY KEY (consumer_group, dedup_id)
) STRICT, WITHOUT ROWID
-- next
-- Records that have not succeeded, by the time at which they can be claimed:
-- failed records by their retry, records in progress by the end of their lease.
CREATE INDEX {index:inbox_open_idx} ON "{prefix}inbox" (consumer_group, status, ifnull(next_retry_at, lease_until)) WHERE status <> 1
-- next
CREATE INDEX {index:inbox_done_idx} ON "{prefix}inbox" (consumer_group, processed_at) WHERE status = 1
