-- One record per reconciliation job: who runs it, and how the last run went. Names compare as bytes.
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
-- What jobs have sent, so that they do not send it again: a key is made of an event's tenant and dedup key.
CREATE TABLE {job_sent} (
  job      text COLLATE "C" NOT NULL,
  key_id   uuid             NOT NULL,
  event_id uuid             NOT NULL,
  sent_at  timestamptz      NOT NULL,
  CONSTRAINT "{prefix}job_sent_pkey" PRIMARY KEY (job, key_id)
)
-- next
-- What was sent since a while, and forgetting what was sent before: the oldest first.
CREATE INDEX "{prefix}job_sent_at_idx" ON {job_sent} (job, sent_at)
