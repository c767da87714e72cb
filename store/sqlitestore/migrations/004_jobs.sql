-- One row per reconciliation job: its owner, its lease and the result of its
-- last run. Texts compare as bytes.
CREATE TABLE {job} (
  name        TEXT    NOT NULL PRIMARY KEY,
  owner       BLOB,
  fence       INTEGER NOT NULL,
  lease_until INTEGER,
  started_at  INTEGER NOT NULL,
  ended_at    INTEGER,
  next_at     INTEGER,
  found       INTEGER NOT NULL DEFAULT 0,
  sent        INTEGER NOT NULL DEFAULT 0,
  skipped     INTEGER NOT NULL DEFAULT 0,
  failed      INTEGER NOT NULL DEFAULT 0,
  last_error  TEXT
) STRICT, WITHOUT ROWID
-- next
-- Events that jobs have sent. A job skips an event whose key has a row. key_id
-- is derived from the tenant and the dedup key of the event.
CREATE TABLE {job_sent} (
  job      TEXT    NOT NULL,
  key_id   BLOB    NOT NULL CHECK (length(key_id) = 16),
  event_id BLOB    NOT NULL CHECK (length(event_id) = 16),
  sent_at  INTEGER NOT NULL,
  PRIMARY KEY (job, key_id)
) STRICT, WITHOUT ROWID
-- next
CREATE INDEX {index:job_sent_at_idx} ON "{prefix}job_sent" (job, sent_at)
