-- The destinations of the outbox. number identifies the rows of a destination
-- in the tables below. Names compare as bytes.
CREATE TABLE {destination} (
  number     INTEGER PRIMARY KEY CHECK (number BETWEEN 1 AND 31),
  name       TEXT    NOT NULL UNIQUE,
  paused_at  INTEGER,
  reason     TEXT    NOT NULL DEFAULT '',
  probe_at   INTEGER,
  created_at INTEGER NOT NULL
) STRICT
-- next
-- The backlogs: events that have left the outbox, and that a destination has
-- yet to receive. All destinations share these three tables. lane is 1024 times
-- the number of the destination; an event can have a row for each destination.
-- Ready events, read in the order of (lane, seq): available_at is the time of
-- the next attempt, and final means that the event becomes a dead letter
-- instead.
CREATE TABLE {backlog} (
  lane           INTEGER NOT NULL CHECK (lane BETWEEN 1024 AND 31744 AND lane % 1024 = 0),
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL CHECK (length(id) = 16),
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
  available_at   INTEGER,
  attempts       INTEGER NOT NULL,
  replay         INTEGER NOT NULL,
  final          INTEGER NOT NULL,
  last_error     TEXT,
  PRIMARY KEY (lane, seq),
  UNIQUE (id, lane)
) STRICT
-- next
-- For the read that takes events with a priority ahead of the others.
CREATE INDEX {index:backlog_priority_idx} ON "{prefix}backlog" (lane, seq) WHERE priority > 0
-- next
-- For the statistics: few events had attempts before they were diverted.
CREATE INDEX {index:backlog_tried_idx} ON "{prefix}backlog" (lane, attempts) WHERE attempts > 0
-- next
-- Events of the backlogs that are not due.
CREATE TABLE {backlog_delayed} (
  lane           INTEGER NOT NULL CHECK (lane BETWEEN 1024 AND 31744 AND lane % 1024 = 0),
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL CHECK (length(id) = 16),
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
  attempts       INTEGER NOT NULL,
  replay         INTEGER NOT NULL,
  holds          INTEGER NOT NULL,
  last_error     TEXT,
  PRIMARY KEY (id, lane)
) STRICT
-- next
CREATE INDEX {index:backlog_delayed_due_idx} ON "{prefix}backlog_delayed" (lane, due_at, seq)
-- next
CREATE INDEX {index:backlog_delayed_holds_idx} ON "{prefix}backlog_delayed" (lane) WHERE holds
-- next
-- Dead letters of the destinations.
CREATE TABLE {backlog_dead} (
  lane           INTEGER NOT NULL CHECK (lane BETWEEN 1024 AND 31744 AND lane % 1024 = 0),
  seq            INTEGER NOT NULL,
  id             BLOB    NOT NULL CHECK (length(id) = 16),
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
  died_at        INTEGER NOT NULL,
  PRIMARY KEY (id, lane)
) STRICT
-- next
CREATE INDEX {index:backlog_dead_seq_idx} ON "{prefix}backlog_dead" (lane, seq)
-- next
CREATE INDEX {index:backlog_dead_died_idx} ON "{prefix}backlog_dead" (lane, died_at)
-- next
CREATE INDEX {index:backlog_dead_holds_idx} ON "{prefix}backlog_dead" (lane) WHERE holds
