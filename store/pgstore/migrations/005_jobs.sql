-- One row per reconciliation job: its owner, its lease and the result of its
-- last run. Names compare as bytes.
CREATE TABLE {job} (
  name        text COLLATE "C" NOT NULL,
  owner       uuid,
  fence       bigint           NOT NULL,
  lease_until timestamptz,
  started_at  timestamptz      NOT NULL,
  ended_at    timestamptz,
  next_at     timestamptz,
  found       bigint           NOT NULL DEFAULT 0,
  sent        bigint           NOT NULL DEFAULT 0,
  skipped     bigint           NOT NULL DEFAULT 0,
  failed      bigint           NOT NULL DEFAULT 0,
  last_error  text,
  CONSTRAINT "{prefix}job_pkey" PRIMARY KEY (name)
)
-- next
-- Events that jobs have sent. A job skips an event whose key has a row. key_id
-- is derived from the tenant and the dedup key of the event.
CREATE TABLE {job_sent} (
  job      text COLLATE "C" NOT NULL,
  key_id   uuid             NOT NULL,
  event_id uuid             NOT NULL,
  sent_at  timestamptz      NOT NULL,
  CONSTRAINT "{prefix}job_sent_pkey" PRIMARY KEY (job, key_id)
)
-- next
-- For reads of recently sent events, and for the purge, which deletes the
-- oldest rows first.
CREATE INDEX "{prefix}job_sent_at_idx" ON {job_sent} (job, sent_at)
