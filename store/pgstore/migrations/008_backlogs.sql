-- The destinations of the outbox. Names compare as bytes.
CREATE TABLE {destination} (
  number     smallint         NOT NULL,
  name       text COLLATE "C" NOT NULL,
  paused_at  timestamptz,
  reason     text             NOT NULL DEFAULT '',
  probe_at   timestamptz,
  created_at timestamptz      NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT "{prefix}destination_pkey" PRIMARY KEY (number),
  CONSTRAINT "{prefix}destination_name_key" UNIQUE (name)
)
-- next
-- The backlogs: events that have left the outbox, and that a destination has
-- yet to receive. All destinations share these three tables. lane is the lane
-- of the event plus 1024 times the number of the destination; an event can have
-- a row for each destination. Ready events, read in the order of (lane, seq):
-- available_at is the time of the next attempt, and final means that the event
-- becomes a dead letter instead. The id is part of the primary key because the
-- history of a database that was restored from a backup can have a seq twice.
CREATE TABLE {backlog} (
  lane           smallint    NOT NULL,
  seq            bigint      NOT NULL,
  id             uuid        NOT NULL,
  type           text        NOT NULL,
  aggregate_type text        NOT NULL,
  aggregate_id   text,
  tenant_id      text,
  topic          text,
  routing_key    text,
  schema_id      text,
  schema_version integer     NOT NULL,
  dedup_key      text,
  occurred_at    timestamptz NOT NULL,
  priority       smallint    NOT NULL,
  correlation_id text,
  causation_id   text,
  headers        text,
  content_type   text,
  payload        bytea       NOT NULL,
  created_at     timestamptz NOT NULL,
  available_at   timestamptz,
  attempts       integer     NOT NULL,
  replay         integer     NOT NULL,
  final          boolean     NOT NULL,
  last_error     text,
  CONSTRAINT "{prefix}backlog_pkey" PRIMARY KEY (lane, seq, id),
  CONSTRAINT "{prefix}backlog_id_key" UNIQUE (id, lane)
)
-- next
-- For the read that takes events with a priority ahead of the others.
CREATE INDEX "{prefix}backlog_priority_idx" ON {backlog} (lane, seq) WHERE priority > 0
-- next
-- For the statistics: few events had attempts before they were diverted.
CREATE INDEX "{prefix}backlog_tried_idx" ON {backlog} (lane) WHERE attempts > 0
-- next
-- Events of the backlogs that are not due.
CREATE TABLE {backlog_delayed} (
  lane           smallint    NOT NULL,
  seq            bigint      NOT NULL,
  id             uuid        NOT NULL,
  type           text        NOT NULL,
  aggregate_type text        NOT NULL,
  aggregate_id   text,
  tenant_id      text,
  topic          text,
  routing_key    text,
  schema_id      text,
  schema_version integer     NOT NULL,
  dedup_key      text,
  occurred_at    timestamptz NOT NULL,
  priority       smallint    NOT NULL,
  correlation_id text,
  causation_id   text,
  headers        text,
  content_type   text,
  payload        bytea       NOT NULL,
  created_at     timestamptz NOT NULL,
  due_at         timestamptz NOT NULL,
  attempts       integer     NOT NULL,
  replay         integer     NOT NULL,
  holds          boolean     NOT NULL,
  last_error     text,
  CONSTRAINT "{prefix}backlog_delayed_pkey" PRIMARY KEY (id, lane)
)
-- next
CREATE INDEX "{prefix}backlog_delayed_due_idx" ON {backlog_delayed} (lane, due_at, seq)
-- next
CREATE INDEX "{prefix}backlog_delayed_holds_idx" ON {backlog_delayed} (lane) WHERE holds
-- next
-- Dead letters of the destinations.
CREATE TABLE {backlog_dead} (
  lane           smallint    NOT NULL,
  seq            bigint      NOT NULL,
  id             uuid        NOT NULL,
  type           text        NOT NULL,
  aggregate_type text        NOT NULL,
  aggregate_id   text,
  tenant_id      text,
  topic          text,
  routing_key    text,
  schema_id      text,
  schema_version integer     NOT NULL,
  dedup_key      text,
  occurred_at    timestamptz NOT NULL,
  priority       smallint    NOT NULL,
  correlation_id text,
  causation_id   text,
  headers        text,
  content_type   text,
  payload        bytea       NOT NULL,
  created_at     timestamptz NOT NULL,
  attempts       integer     NOT NULL,
  replay         integer     NOT NULL,
  holds          boolean     NOT NULL,
  last_error     text,
  died_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT "{prefix}backlog_dead_pkey" PRIMARY KEY (id, lane)
)
-- next
-- Dead letters are listed in the order of seq, and the purge deletes the oldest
-- first. lane >> 10 is the number of the destination.
CREATE INDEX "{prefix}backlog_dead_seq_idx" ON {backlog_dead} ((lane >> 10), seq)
-- next
CREATE INDEX "{prefix}backlog_dead_died_idx" ON {backlog_dead} ((lane >> 10), died_at)
-- next
CREATE INDEX "{prefix}backlog_dead_holds_idx" ON {backlog_dead} (lane) WHERE holds
-- next
-- As for the tables of the outbox: autovacuum starts after a number of dead
-- rows.
ALTER TABLE {backlog} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
)
-- next
ALTER TABLE {backlog_delayed} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
)
