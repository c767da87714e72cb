-- The order of events comes from one sequence. With CACHE above 1 a connection
-- would keep numbers that are lower than those of committed events.
CREATE SEQUENCE {outbox_seq} AS bigint CACHE 1
-- next
-- The lane of an ordered event. driver.LaneOf computes the same in Go.
CREATE FUNCTION {lane_of}(tenant_id text, aggregate_type text, aggregate_id text, lanes integer) RETURNS smallint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT (('x' || encode(substr(sha256(convert_to(
    coalesce(tenant_id, '') || chr(31) || aggregate_type || chr(31) || aggregate_id, 'UTF8')), 1, 4), 'hex'
  ))::bit(32)::bigint % lanes)::smallint
$$
-- next
-- Ready events, read in the order of (lane, seq). A row stays from its commit
-- until the event is delivered, retried, deferred or dead.
CREATE TABLE {outbox} (
  lane           smallint    NOT NULL,
  seq            bigint      NOT NULL DEFAULT nextval('{outbox_seq}'),
  id             uuid        NOT NULL DEFAULT (lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
                                               || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid,
  type           text        NOT NULL,
  aggregate_type text        NOT NULL DEFAULT '__GLOBAL__',
  aggregate_id   text,
  tenant_id      text,
  topic          text,
  routing_key    text,
  schema_id      text,
  schema_version integer     NOT NULL DEFAULT 1,
  dedup_key      text,
  occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  priority       smallint    NOT NULL DEFAULT 0,
  correlation_id text,
  causation_id   text,
  headers        text,
  content_type   text,
  payload        bytea       NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  available_at   timestamptz,
  CONSTRAINT "{prefix}outbox_pkey" PRIMARY KEY (lane, seq),
  CONSTRAINT "{prefix}outbox_id_key" UNIQUE (id)
)
-- next
ALTER SEQUENCE {outbox_seq} OWNED BY {outbox}.seq
-- next
-- For the read that takes events with a priority ahead of a backlog.
CREATE INDEX "{prefix}outbox_priority_idx" ON {outbox} (lane, seq) WHERE priority > 0
-- next
-- Sets the lane of a row that a producer inserts with plain SQL. The trigger
-- does not fire for rows that name a lane.
CREATE FUNCTION {choose_lane}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.lane := CASE
    WHEN coalesce(NEW.aggregate_id, '') = '' THEN {lane_of}('', '', NEW.id::text, {lanes})
    ELSE {lane_of}(NEW.tenant_id, NEW.aggregate_type, NEW.aggregate_id, {lanes})
  END;
  RETURN NEW;
END
$$
-- next
CREATE TRIGGER "{prefix}outbox_lane" BEFORE INSERT ON {outbox}
FOR EACH ROW WHEN (NEW.lane IS NULL) EXECUTE FUNCTION {choose_lane}()
-- next
-- Events that are not due: scheduled events, failed events that wait for their
-- next attempt, and replayed events. The relay delivers a row from this table;
-- a row never returns to the outbox.
CREATE TABLE {delayed} (
  lane           smallint    NOT NULL,
  seq            bigint      NOT NULL DEFAULT nextval('{outbox_seq}'),
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
  created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  due_at         timestamptz NOT NULL,
  attempts       integer     NOT NULL DEFAULT 0,
  replay         integer     NOT NULL DEFAULT 0,
  holds          boolean     NOT NULL DEFAULT false,
  last_error     text,
  CONSTRAINT "{prefix}delayed_pkey" PRIMARY KEY (id)
)
-- next
CREATE INDEX "{prefix}delayed_due_idx" ON {delayed} (lane, due_at, seq)
-- next
-- A new owner of a lane reads the aggregates that are held.
CREATE INDEX "{prefix}delayed_holds_idx" ON {delayed} (lane) WHERE holds
-- next
-- Dead letters. A row stays until an operator replays or discards it, or its
-- retention passes.
CREATE TABLE {dead} (
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
  CONSTRAINT "{prefix}dead_pkey" PRIMARY KEY (id)
)
-- next
CREATE INDEX "{prefix}dead_seq_idx" ON {dead} (seq)
-- next
CREATE INDEX "{prefix}dead_holds_idx" ON {dead} (lane) WHERE holds
-- next
-- Delivered events. Daily partitions make the purge cheap. The default
-- partition always exists, so a missing day never fails a settlement. The id is
-- not unique here; it is unique in the table that the row comes from.
CREATE TABLE {history} (
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
  done_at        timestamptz NOT NULL
) PARTITION BY RANGE (done_at)
-- next
CREATE INDEX "{prefix}history_id_idx" ON {history} (id)
-- next
CREATE TABLE {history_rest} PARTITION OF {history} DEFAULT
-- next
-- Dedup keys of pending events. Events without a dedup key have no row. Keys
-- compare as bytes.
CREATE TABLE {dedup} (
  tenant_id text COLLATE "C" NOT NULL,
  dedup_key text COLLATE "C" NOT NULL,
  id        uuid             NOT NULL,
  CONSTRAINT "{prefix}dedup_pkey" PRIMARY KEY (tenant_id, dedup_key)
)
-- next
-- The owner of each lane. The row of a lane changes only when its owner
-- changes.
CREATE TABLE {lane} (
  lane      smallint NOT NULL,
  owner     uuid,
  epoch     bigint   NOT NULL DEFAULT 0,
  token     uuid,
  in_flight integer  NOT NULL DEFAULT 0,
  dirty     boolean  NOT NULL DEFAULT false,
  CONSTRAINT "{prefix}lane_pkey" PRIMARY KEY (lane)
)
-- next
INSERT INTO {lane} (lane) SELECT generate_series(0, {lanes} - 1)
-- next
CREATE TABLE {node} (
  id         uuid        NOT NULL,
  relay      text        NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT "{prefix}node_pkey" PRIMARY KEY (id)
)
-- next
CREATE TABLE {setting} (
  name  text NOT NULL,
  value text NOT NULL,
  CONSTRAINT "{prefix}setting_pkey" PRIMARY KEY (name)
)
-- next
INSERT INTO {setting} (name, value) VALUES ('lanes', '{lanes}')
-- next
-- These tables empty as fast as they fill. Autovacuum therefore starts after a
-- number of dead rows and not after a share of the table.
ALTER TABLE {outbox} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
)
-- next
ALTER TABLE {delayed} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
)
-- next
ALTER TABLE {dedup} SET (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0
)
