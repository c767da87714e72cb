-- Ready events, read in the order of seq. A row stays from its commit until the
-- event is delivered, retried, deferred or dead. AUTOINCREMENT never assigns a
-- seq twice, even after the deletion of the newest row. Writers run one at a
-- time, so the order of seq is the order of commits. With STRICT and a payload
-- of type ANY a producer can insert its payload as text or as a blob, and
-- cannot insert values that the store cannot read.
CREATE TABLE {outbox} (
  lane           INTEGER NOT NULL DEFAULT 0 CHECK (lane = 0),
  seq            INTEGER PRIMARY KEY AUTOINCREMENT,
  id             BLOB    NOT NULL DEFAULT ({new_id}) CHECK (length(id) = 16),
  type           TEXT    NOT NULL,
  aggregate_type TEXT    NOT NULL DEFAULT '__GLOBAL__',
  aggregate_id   TEXT,
  tenant_id      TEXT,
  topic          TEXT,
  routing_key    TEXT,
  schema_id      TEXT,
  schema_version INTEGER NOT NULL DEFAULT 1,
  dedup_key      TEXT,
  occurred_at    INTEGER NOT NULL DEFAULT ({now}),
  priority       INTEGER NOT NULL DEFAULT 0,
  correlation_id TEXT,
  causation_id   TEXT,
  headers        TEXT,
  content_type   TEXT,
  payload        ANY     NOT NULL,
  created_at     INTEGER NOT NULL DEFAULT ({now}),
  available_at   INTEGER
) STRICT
-- next
CREATE UNIQUE INDEX {index:outbox_id_key} ON "{prefix}outbox" (id)
-- next
-- For the read that takes events with a priority ahead of a backlog.
CREATE INDEX {index:outbox_priority_idx} ON "{prefix}outbox" (seq) WHERE priority > 0
-- next
-- Events that are not due: scheduled events, failed events that wait for their
-- next attempt, and replayed events. The relay delivers a row from this table;
-- a row never returns to the outbox.
CREATE TABLE {delayed} (
  lane           INTEGER NOT NULL CHECK (lane = 0),
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  type           TEXT    NOT NULL,
  aggregate_type TEXT    NOT NULL,
  aggregate_id   TEXT,
  tenant_id      TEXT,
  topic          TEXT,
  routing_key    TEXT,
  schema_id      TEXT,
  schema_version INTEGER NOT NULL,
  dedup_key      TEXT,
  occurred_at    INTEGER NOT NULL,
  priority       INTEGER NOT NULL,
  correlation_id TEXT,
  causation_id   TEXT,
  headers        TEXT,
  content_type   TEXT,
  payload        ANY     NOT NULL,
  created_at     INTEGER NOT NULL,
  due_at         INTEGER NOT NULL,
  attempts       INTEGER NOT NULL DEFAULT 0,
  replay         INTEGER NOT NULL DEFAULT 0,
  holds          INTEGER NOT NULL DEFAULT 0,
  last_error     TEXT
) STRICT
-- next
CREATE INDEX {index:delayed_due_idx} ON "{prefix}delayed" (lane, due_at, seq)
-- next
-- A new owner of the lane reads the aggregates that are held.
CREATE INDEX {index:delayed_holds_idx} ON "{prefix}delayed" (lane) WHERE holds
-- next
-- Dead letters. A row stays until an operator replays or discards it, or its
-- retention passes.
CREATE TABLE {dead} (
  lane           INTEGER NOT NULL CHECK (lane = 0),
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  type           TEXT    NOT NULL,
  aggregate_type TEXT    NOT NULL,
  aggregate_id   TEXT,
  tenant_id      TEXT,
  topic          TEXT,
  routing_key    TEXT,
  schema_id      TEXT,
  schema_version INTEGER NOT NULL,
  dedup_key      TEXT,
  occurred_at    INTEGER NOT NULL,
  priority       INTEGER NOT NULL,
  correlation_id TEXT,
  causation_id   TEXT,
  headers        TEXT,
  content_type   TEXT,
  payload        ANY     NOT NULL,
  created_at     INTEGER NOT NULL,
  attempts       INTEGER NOT NULL,
  replay         INTEGER NOT NULL,
  holds          INTEGER NOT NULL,
  last_error     TEXT,
  died_at        INTEGER NOT NULL
) STRICT
-- next
CREATE INDEX {index:dead_seq_idx} ON "{prefix}dead" (lane, seq)
-- next
CREATE INDEX {index:dead_died_idx} ON "{prefix}dead" (died_at)
-- next
CREATE INDEX {index:dead_holds_idx} ON "{prefix}dead" (lane) WHERE holds
-- next
-- Delivered events. The id is not unique here; it is unique in the table that
-- the row comes from.
CREATE TABLE {history} (
  lane           INTEGER NOT NULL,
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL,
  type           TEXT    NOT NULL,
  aggregate_type TEXT    NOT NULL,
  aggregate_id   TEXT,
  tenant_id      TEXT,
  topic          TEXT,
  routing_key    TEXT,
  schema_id      TEXT,
  schema_version INTEGER NOT NULL,
  dedup_key      TEXT,
  occurred_at    INTEGER NOT NULL,
  priority       INTEGER NOT NULL,
  correlation_id TEXT,
  causation_id   TEXT,
  headers        TEXT,
  content_type   TEXT,
  payload        ANY     NOT NULL,
  created_at     INTEGER NOT NULL,
  attempts       INTEGER NOT NULL,
  replay         INTEGER NOT NULL,
  done_at        INTEGER NOT NULL
) STRICT
-- next
CREATE INDEX {index:history_id_idx} ON "{prefix}history" (id)
-- next
CREATE INDEX {index:history_done_idx} ON "{prefix}history" (done_at)
-- next
-- Dedup keys of pending events. Events without a dedup key have no row. Keys
-- compare as bytes.
CREATE TABLE {dedup} (
  tenant_id TEXT NOT NULL,
  dedup_key TEXT NOT NULL,
  id        BLOB NOT NULL,
  PRIMARY KEY (tenant_id, dedup_key)
) STRICT, WITHOUT ROWID
-- next
-- The owner of the lane. The row changes only when the owner changes.
CREATE TABLE {lane} (
  lane      INTEGER PRIMARY KEY CHECK (lane = 0),
  owner     BLOB,
  epoch     INTEGER NOT NULL DEFAULT 0,
  token     BLOB,
  in_flight INTEGER NOT NULL DEFAULT 0,
  dirty     INTEGER NOT NULL DEFAULT 0
) STRICT
-- next
INSERT INTO {lane} (lane) VALUES (0)
-- next
CREATE TABLE {node} (
  id         BLOB    NOT NULL PRIMARY KEY,
  relay      TEXT    NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID
-- next
CREATE TABLE {setting} (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID
-- next
INSERT INTO {setting} (name, value) VALUES ('lanes', '1')
