-- done divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, 0 AS attempts, 0 AS replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done) AS g
  JOIN unnest($6::uuid[], $7::integer[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done
) AS all_of_them) AS m;

-- late divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, attempts, replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done_late) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done_late) AS g
  JOIN unnest($6::uuid[], $7::integer[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late
) AS all_of_them) AS m;

-- done late divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, 0 AS attempts, 0 AS replay
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, attempts, replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done UNION ALL SELECT * FROM done_late) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done UNION ALL SELECT * FROM done_late) AS g
  JOIN unnest($7::uuid[], $8::integer[], $9::integer[], $10::bigint[], $11::boolean[], $12::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $13::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $13::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late
) AS all_of_them) AS m;

-- done history divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, 0 AS attempts, 0 AS replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), kept AS (
  INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM (SELECT * FROM done) AS g
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done) AS g
  JOIN unnest($6::uuid[], $7::integer[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done
) AS all_of_them) AS m;

-- late history divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, attempts, replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done_late) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), kept AS (
  INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM (SELECT * FROM done_late) AS g
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done_late) AS g
  JOIN unnest($6::uuid[], $7::integer[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late
) AS all_of_them) AS m;

-- done late history divert
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, 0 AS attempts, 0 AS replay
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, attempts, replay
), done_key AS (
  DELETE FROM {dedup} d USING (SELECT * FROM done UNION ALL SELECT * FROM done_late) AS g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), kept AS (
  INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM (SELECT * FROM done UNION ALL SELECT * FROM done_late) AS g
), diverted AS (
  INSERT INTO {backlog} (lane, seq, {events}, created_at, replay, available_at, attempts, final, last_error)
  SELECT lane + number * 1024, seq, {events}, created_at, replay,
    CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 microsecond' END, tried, final, error
  FROM (SELECT * FROM done UNION ALL SELECT * FROM done_late) AS g
  JOIN unnest($7::uuid[], $8::integer[], $9::integer[], $10::bigint[], $11::boolean[], $12::text[])
    AS v(event, destination, tried, delay, final, error) ON event = id
  JOIN (SELECT number FROM {destination}) AS d ON number = destination
  ON CONFLICT (id, lane) DO NOTHING
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $13::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $13::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late
) AS all_of_them) AS m;
