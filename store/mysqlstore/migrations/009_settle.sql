DROP PROCEDURE IF EXISTS {settle}
-- next
-- Records results under the fences in one transaction that no client can
-- interrupt: a client that pauses between a lock and its commit would block an
-- acquisition of the lane for as long as its connection lives. Arguments are
-- JSON. p_fences: [[lane, epoch, token]] in the order of the lanes. p_done:
-- [[lane, id]]. In front of it may be a number of rows, a colon, the condition
-- of a WHERE clause that finds these rows in the outbox, and a semicolon.
-- p_retry: [[lane, id, attempts, delay in microseconds, holds, error, replay]].
-- p_dead: [[lane, id, attempts, holds, error, null, replay]]. p_free: [id], the
-- events whose dedup keys are no longer needed. Ids are hexadecimal. A row
-- whose replay number differs was replayed after the read and is skipped; a
-- missing replay number matches every row.
--
-- The procedure changes everything or nothing. If a lane is not held or a row
-- is missing, nothing has changed, and the result lists the rest for another
-- call: outcome 1 has the lanes and tokens that are held, outcome 2 those ids
-- in JSON that exist. Outcome 3 has no list: the condition does not find all of
-- its rows. Outcome 0 is success, with the ids of the events whose dedup keys a
-- producer had locked: a settlement never waits for a producer.
--
-- The condition saves time: the server reads a list in a statement's text
-- faster than in JSON, and finds a row faster by the primary key than by id.
-- The condition runs with the rights of the caller.
--
-- The fence is a lock: an acquisition of the lane waits for it, and after an
-- acquisition that finished first the epoch differs. The lock is shared, so an
-- owner can settle several batches of a lane at once. Rows are found by id:
-- unique id of the outbox, primary key of delayed, id of dedup. The joins are
-- straight because the lists are short. A copy at READ COMMITTED does not lock
-- its rows, so the numbers of copied and of deleted rows must agree. Reads that
-- must not lock use SELECT … INTO: a subquery inside IF or SET takes locks.
CREATE PROCEDURE {settle}(
  IN p_fences LONGBLOB, IN p_done LONGBLOB, IN p_history TINYINT, IN p_retry LONGBLOB, IN p_dead LONGBLOB, IN p_free LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY INVOKER
settling: BEGIN
  DECLARE v_fences LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_fences USING utf8mb4);
  DECLARE v_done LONGTEXT CHARACTER SET utf8mb4;
  DECLARE v_retry LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_retry USING utf8mb4);
  DECLARE v_dead LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_dead USING utf8mb4);
  DECLARE v_free LONGTEXT CHARACTER SET utf8mb4;
  DECLARE v_held, v_at, v_ready, v_copied, v_moved, v_part, v_keys INT DEFAULT 0;
  DECLARE v_tenant VARBINARY(64);
  DECLARE v_key VARBINARY(255);
  DECLARE v_end TINYINT DEFAULT 0;
  DECLARE unlocked CURSOR FOR
    SELECT d.tenant_id, d.dedup_key FROM JSON_TABLE(v_free, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
    STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id)
    FOR UPDATE /*!80001 OF d */ SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT COUNT(*) INTO v_held
  FROM JSON_TABLE(v_fences, '$[*]' COLUMNS (lane INT PATH '$[0]', epoch BIGINT PATH '$[1]', token CHAR(32) PATH '$[2]')) AS r
  STRAIGHT_JOIN {lane} AS l ON l.lane = r.lane
  WHERE l.epoch = r.epoch AND l.token = UNHEX(r.token)
  /*M! LOCK IN SHARE MODE */ /*!80001 FOR SHARE OF l */;
  IF v_held < JSON_LENGTH(v_fences) THEN
    ROLLBACK;
    SELECT 1 AS outcome, -1 AS lane, NULL AS id
    UNION ALL SELECT 1, l.lane, l.token
    FROM JSON_TABLE(v_fences, '$[*]' COLUMNS (lane INT PATH '$[0]', epoch BIGINT PATH '$[1]', token CHAR(32) PATH '$[2]')) AS r
    STRAIGHT_JOIN {lane} AS l ON l.lane = r.lane
    WHERE l.epoch = r.epoch AND l.token = UNHEX(r.token);
    LEAVE settling;
  END IF;

  IF LEFT(p_done, 1) <> '[' THEN
    SET v_at = LOCATE(';', p_done), v_ready = SUBSTRING_INDEX(LEFT(p_done, 20), ':', 1), v_copied = v_ready;
    SET @waybill_where = CONVERT(SUBSTRING(p_done, LOCATE(':', p_done) + 1, v_at - LOCATE(':', p_done) - 1) USING utf8mb4);
    IF p_history THEN
      SET @waybill_settle = CONCAT('INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
        SELECT o.lane, o.seq, {o.events}, o.created_at, 0, 0, UTC_TIMESTAMP(6) FROM {outbox} AS o FORCE INDEX (PRIMARY) WHERE ', @waybill_where);
      PREPARE waybill_settle FROM @waybill_settle;
      EXECUTE waybill_settle;
      SET v_copied = ROW_COUNT();
    END IF;
    SET @waybill_settle = CONCAT('DELETE o FROM {outbox} AS o FORCE INDEX (PRIMARY) WHERE ', @waybill_where);
    PREPARE waybill_settle FROM @waybill_settle;
    EXECUTE waybill_settle;
    SET v_moved = ROW_COUNT();
    DEALLOCATE PREPARE waybill_settle;
    SET @waybill_settle = NULL, @waybill_where = NULL;
    IF v_moved <> v_ready OR v_copied <> v_ready THEN
      ROLLBACK;
      SELECT 3 AS outcome, -1 AS lane, NULL AS id;
      LEAVE settling;
    END IF;
  END IF;

  SET v_done = CONVERT(SUBSTRING(p_done, v_at + 1) USING utf8mb4);
  IF JSON_LENGTH(v_done) > 0 THEN
    IF p_history THEN
      INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
      SELECT o.lane, o.seq, {o.events}, o.created_at, 0, 0, UTC_TIMESTAMP(6)
      FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_copied = v_copied + ROW_COUNT();
    END IF;
    DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    SET v_part = ROW_COUNT();
    IF v_part < JSON_LENGTH(v_done) THEN
      IF p_history THEN
        INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
        SELECT o.lane, o.seq, {o.events}, o.created_at, o.attempts, o.replay, UTC_TIMESTAMP(6)
        FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
        STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
        SET v_copied = v_copied + ROW_COUNT();
      END IF;
      DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_part = v_part + ROW_COUNT();
    END IF;
    SET v_moved = v_moved + v_part;
    IF NOT p_history THEN
      SET v_copied = v_copied + v_part;
    END IF;
  END IF;

  IF JSON_LENGTH(v_retry) > 0 THEN
    UPDATE JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
      delay BIGINT PATH '$[3]', holds INT PATH '$[4]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[5]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane AND o.replay = COALESCE(r.replay, o.replay)
    SET o.due_at = UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, o.attempts = r.attempts, o.holds = r.holds, o.last_error = r.error;
    SET v_part = ROW_COUNT(), v_moved = v_moved + v_part, v_copied = v_copied + v_part;
    IF v_part < JSON_LENGTH(v_retry) THEN
      INSERT INTO {delayed} (lane, seq, {events}, created_at, due_at, attempts, holds, last_error)
      SELECT o.lane, o.seq, {o.events}, o.created_at, UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, r.attempts, r.holds, r.error
      FROM JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
        delay BIGINT PATH '$[3]', holds INT PATH '$[4]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[5]')) AS r
      STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_copied = v_copied + ROW_COUNT();
      DELETE o FROM JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
  END IF;

  IF JSON_LENGTH(v_dead) > 0 THEN
    INSERT INTO {dead} (lane, seq, {events}, created_at, attempts, replay, holds, last_error, died_at)
    SELECT o.lane, o.seq, {o.events}, o.created_at, r.attempts, 0, r.holds, r.error, UTC_TIMESTAMP(6)
    FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
      holds INT PATH '$[3]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[4]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    SET v_copied = v_copied + ROW_COUNT();
    DELETE o FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    SET v_part = ROW_COUNT(), v_moved = v_moved + v_part;
    IF v_part < JSON_LENGTH(v_dead) THEN
      INSERT INTO {dead} (lane, seq, {events}, created_at, attempts, replay, holds, last_error, died_at)
      SELECT o.lane, o.seq, {o.events}, o.created_at, r.attempts, o.replay, r.holds, r.error, UTC_TIMESTAMP(6)
      FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
        holds INT PATH '$[3]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[4]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane AND o.replay = COALESCE(r.replay, o.replay);
      SET v_copied = v_copied + ROW_COUNT();
      DELETE o FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane AND o.replay = COALESCE(r.replay, o.replay);
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
  END IF;

  IF v_moved < v_ready + JSON_LENGTH(v_done) + JSON_LENGTH(v_retry) + JSON_LENGTH(v_dead) OR v_moved <> v_copied THEN
    ROLLBACK;
    SELECT 2 AS outcome, -1 AS lane, NULL AS id
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane AND o.replay = COALESCE(r.replay, o.replay);
    LEAVE settling;
  END IF;

  SELECT COUNT(*) INTO v_keys FROM (SELECT 1 AS one FROM {dedup} LIMIT 1) AS d;
  IF v_keys > 0 THEN
    SET v_free = CONVERT(p_free USING utf8mb4);
    SELECT COUNT(*) INTO v_keys FROM JSON_TABLE(v_free, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
    STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id);
  END IF;
  IF v_keys > 0 THEN
    OPEN unlocked;
    FETCH unlocked INTO v_tenant, v_key;
    WHILE NOT v_end DO
      DELETE FROM {dedup} WHERE tenant_id = v_tenant AND dedup_key = v_key;
      SET v_keys = v_keys - 1;
      FETCH unlocked INTO v_tenant, v_key;
    END WHILE;
    CLOSE unlocked;
  END IF;
  COMMIT;
  IF v_keys > 0 THEN
    SELECT 0 AS outcome, -1 AS lane, NULL AS id
    UNION ALL SELECT 0, -1, d.id FROM JSON_TABLE(v_free, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
    STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id);
  ELSE
    SELECT 0 AS outcome, -1 AS lane, NULL AS id;
  END IF;
END
