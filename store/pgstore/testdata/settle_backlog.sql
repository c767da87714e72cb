--
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), 0, '';

-- done
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $6::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $6::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done
) AS all_of_them) AS m;

-- late
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $6::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $6::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late
) AS all_of_them) AS m;

-- done late
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $7::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $7::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late
) AS all_of_them) AS m;

-- retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), retry AS MATERIALIZED (
  SELECT * FROM unnest($5::uuid[], $6::integer[], $7::bigint[], $8::boolean[], $9::text[], $10::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($5::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $11::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $11::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- done retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- late retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- done late retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[], $12::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($7::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $13::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $13::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($5::uuid[], $6::integer[], $7::boolean[], $8::text[], $9::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $10::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $10::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM buried
) AS all_of_them) AS m;

-- done dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::boolean[], $9::text[], $10::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $11::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $11::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- late dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::boolean[], $9::text[], $10::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $11::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $11::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done late dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::boolean[], $10::text[], $11::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), retry AS MATERIALIZED (
  SELECT * FROM unnest($5::uuid[], $6::integer[], $7::bigint[], $8::boolean[], $9::text[], $10::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($5::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($11::uuid[], $12::integer[], $13::boolean[], $14::text[], $15::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($11::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($11::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $16::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $16::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($12::uuid[], $13::integer[], $14::boolean[], $15::text[], $16::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $17::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $17::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- late retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($12::uuid[], $13::integer[], $14::boolean[], $15::text[], $16::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $17::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $17::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done late retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), retry AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[], $12::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($7::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($13::uuid[], $14::integer[], $15::boolean[], $16::text[], $17::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($13::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($13::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $18::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $18::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done history
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $6::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $6::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done
) AS all_of_them) AS m;

-- late history
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $6::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $6::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late
) AS all_of_them) AS m;

-- done late history
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $7::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $7::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late
) AS all_of_them) AS m;

-- done history retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- late history retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- done late history retry
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[], $12::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($7::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $13::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $13::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again
) AS all_of_them) AS m;

-- done history dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::boolean[], $9::text[], $10::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $11::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $11::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- late history dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::boolean[], $9::text[], $10::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $11::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $11::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done late history dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::boolean[], $10::text[], $11::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $12::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $12::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done history retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($12::uuid[], $13::integer[], $14::boolean[], $15::text[], $16::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $17::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $17::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- late history retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($6::uuid[], $7::integer[], $8::bigint[], $9::boolean[], $10::text[], $11::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($6::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($6::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($12::uuid[], $13::integer[], $14::boolean[], $15::text[], $16::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($12::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $17::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $17::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;

-- done late history retry dead
WITH mode AS MATERIALIZED (
  SELECT set_config('synchronous_commit', CASE WHEN $1::boolean THEN 'off' WHEN current = 'off' THEN 'on' ELSE current END, true)
  FROM current_setting('synchronous_commit') AS current
),
fence AS MATERIALIZED (
  SELECT l.lane + {low} AS lane FROM mode, {lane} l JOIN unnest($2::smallint[], $3::bigint[], $4::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($5::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($6::uuid[]) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING id, created_at
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), past AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM gone))
    AND done_at >= (SELECT min(created_at) - interval '1 day' FROM gone)
  FOR UPDATE SKIP LOCKED
), redated AS (
  UPDATE {history} SET done_at = clock_timestamp() WHERE id = ANY(ARRAY(SELECT id FROM past))
    AND done_at >= (SELECT min(done_at) FROM past) AND done_at <= (SELECT max(done_at) FROM past)
), retry AS MATERIALIZED (
  SELECT * FROM unnest($7::uuid[], $8::integer[], $9::bigint[], $10::boolean[], $11::text[], $12::integer[])
    AS r(id, attempts, delay, holds, error, replay)
), put_off AS (
  DELETE FROM {outbox} WHERE id = ANY($7::uuid[]) AND (id, replay) IN (SELECT id, replay FROM retry) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), late AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, due_at, attempts, holds, last_error)
  SELECT p.*, clock_timestamp() + r.delay * interval '1 microsecond', r.attempts, r.holds, r.error
  FROM put_off p JOIN retry r ON r.id = p.id RETURNING lane, id
), again AS (
  UPDATE {delayed} d SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
    attempts = r.attempts, holds = r.holds, last_error = r.error
  FROM retry r WHERE d.id = ANY($7::uuid[]) AND d.id = r.id AND d.replay = r.replay AND d.lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence)) RETURNING d.lane, d.id
), verdict AS MATERIALIZED (
  SELECT * FROM unnest($13::uuid[], $14::integer[], $15::boolean[], $16::text[], $17::integer[]) AS v(id, attempts, holds, error, replay)
), given_up AS (
  DELETE FROM {outbox} WHERE id = ANY($13::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), given_up_late AS (
  DELETE FROM {delayed} WHERE id = ANY($13::uuid[]) AND (id, replay) IN (SELECT id, replay FROM verdict) AND lane::integer = ANY(ARRAY(SELECT lane::integer FROM fence))
  RETURNING lane, seq, {events}, created_at, replay
), buried AS (
  INSERT INTO {dead} (lane, seq, {events}, created_at, replay, attempts, holds, last_error)
  SELECT g.*, v.attempts, v.holds, v.error
  FROM (SELECT * FROM given_up UNION ALL SELECT * FROM given_up_late) AS g JOIN verdict v ON v.id = g.id
  RETURNING lane, id, tenant_id, dedup_key
)
SELECT coalesce((SELECT string_agg(lane::text, ',') FROM fence), ''), m.n, CASE WHEN m.n < $18::bigint THEN m.ids ELSE '' END
FROM (SELECT count(*) AS n, CASE WHEN count(*) < $18::bigint THEN coalesce(string_agg(id::text, ','), '') END AS ids FROM (
  SELECT id FROM done UNION ALL SELECT id FROM done_late UNION ALL SELECT id FROM late UNION ALL SELECT id FROM again UNION ALL SELECT id FROM buried
) AS all_of_them) AS m;
