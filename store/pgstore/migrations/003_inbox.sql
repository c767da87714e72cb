-- One record per consumer group and event. Keys, owners and hashes are 16 bytes each, which is what a uuid is. Groups compare as bytes.
CREATE TABLE {inbox} (
  consumer_group text COLLATE "C" NOT NULL,
  dedup_id       uuid             NOT NULL,
  event_id       uuid             NOT NULL,
  tenant_id      text,
  event_type     text             NOT NULL,
  payload_hash   uuid             NOT NULL,
  status         smallint         NOT NULL,
  owner          uuid,
  fence          bigint           NOT NULL,
  attempts       integer          NOT NULL,
  lease_until    timestamptz,
  next_retry_at  timestamptz,
  processed_at   timestamptz,
  received_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
  last_error     text,
  event          bytea,
  CONSTRAINT "{prefix}inbox_pkey" PRIMARY KEY (consumer_group, dedup_id)
)
-- next
-- What did not succeed, for whoever looks at it. Records that succeed at once, which is nearly all, do not pay for it.
CREATE INDEX "{prefix}inbox_open_idx" ON {inbox} (consumer_group, dedup_id) WHERE status <> 1
-- next
-- What can be tried again without being delivered again, by when it may be taken.
CREATE INDEX "{prefix}inbox_due_idx" ON {inbox} (consumer_group, (coalesce(next_retry_at, lease_until)))
WHERE status IN (0, 2) AND event IS NOT NULL
-- next
-- Forgetting what succeeded long ago: the oldest first.
CREATE INDEX "{prefix}inbox_done_idx" ON {inbox} (consumer_group, processed_at) WHERE status = 1
-- next
-- The records of some keys, each by the primary key, whatever the planner thinks of the table: a plan that was made while it was nearly
-- empty would read all of it. The settings end with the function; the transaction it is called in is not the store's to change.
CREATE FUNCTION {inbox_of}(groups text[], keys uuid[]) RETURNS SETOF {inbox}
LANGUAGE plpgsql STABLE ROWS 10 SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
  RETURN QUERY SELECT r.* FROM unnest(groups, keys) AS k(consumer_group, dedup_id)
    CROSS JOIN LATERAL (SELECT * FROM {inbox} i WHERE i.consumer_group = k.consumer_group AND i.dedup_id = k.dedup_id LIMIT 1) AS r;
END
$$
