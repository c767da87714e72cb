-- What consumer groups have received: one row per group and event. Status is 0 while it is being processed, 1 when it has succeeded, 2 when
-- it has failed and is tried again at next_retry_at, 3 when it is dead. The dedup id is the event's id, or is made of its dedup key. Fence
-- grows whenever somebody takes the event. The event itself is there only where the group keeps it for its retries. Texts compare as bytes.
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
-- What has not succeeded, by when it may be taken: a failed row when it is due, one that is being processed when its lease runs out.
CREATE INDEX {index:inbox_open_idx} ON "{prefix}inbox" (consumer_group, status, ifnull(next_retry_at, lease_until)) WHERE status <> 1
-- next
CREATE INDEX {index:inbox_done_idx} ON "{prefix}inbox" (consumer_group, processed_at) WHERE status = 1
