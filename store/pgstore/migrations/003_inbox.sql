-- One row per consumer group and event. Dedup ids, owners and hashes have 16
-- bytes each, stored as uuid. Groups compare as bytes.
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
-- For inspection of records that did not succeed. A record that succeeds in its
-- first transaction never enters this index.
CREATE INDEX "{prefix}inbox_open_idx" ON {inbox} (consumer_group, dedup_id) WHERE status <> 1
-- next
-- Records that can be retried without a new delivery, by the time at which they
-- are due.
CREATE INDEX "{prefix}inbox_due_idx" ON {inbox} (consumer_group, (coalesce(next_retry_at, lease_until)))
WHERE status IN (0, 2) AND event IS NOT NULL
-- next
-- The purge deletes the oldest successful records first.
CREATE INDEX "{prefix}inbox_done_idx" ON {inbox} (consumer_group, processed_at) WHERE status = 1
-- next
-- Returns the records of the given keys. Each is read by the primary key: a
-- plan from a time when the table was nearly empty would read the whole table.
-- The settings apply only inside the function and leave the transaction of the
-- caller unchanged.
CREATE FUNCTION {inbox_of}(groups text[], keys uuid[]) RETURNS SETOF {inbox}
LANGUAGE plpgsql STABLE ROWS 10 SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
  RETURN QUERY SELECT r.* FROM unnest(groups, keys) AS k(consumer_group, dedup_id)
    CROSS JOIN LATERAL (SELECT * FROM {inbox} i WHERE i.consumer_group = k.consumer_group AND i.dedup_id = k.dedup_id LIMIT 1) AS r;
END
$$
