-- The destinations of the outbox. The name compares as bytes.
CREATE TABLE IF NOT EXISTS {destination} (
  number     SMALLINT        NOT NULL,
  name       VARBINARY(64)   NOT NULL,
  paused_at  DATETIME(6),
  reason     VARBINARY(4000) NOT NULL DEFAULT '',
  probe_at   DATETIME(6),
  created_at DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  PRIMARY KEY (number),
  UNIQUE KEY name (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- The backlogs of all destinations: events that have left the outbox and that a
-- destination has yet to receive. lane is the lane of the event plus 1024 times
-- the number of the destination; seq and everything else comes from the outbox
-- or the history. An event can be in the backlogs of several destinations. A
-- row without available_at is ready; a row with final has failed for good, and
-- becomes a dead letter when its turn comes. The index seq also serves counts:
-- it contains what they need.
CREATE TABLE IF NOT EXISTS {backlog} (
  id             BINARY(16)     NOT NULL,
  lane           SMALLINT       NOT NULL,
  seq            BIGINT         NOT NULL,
  type           VARBINARY(128) NOT NULL,
  aggregate_type VARBINARY(64)  NOT NULL,
  aggregate_id   VARBINARY(128),
  tenant_id      VARBINARY(64),
  topic          VARBINARY(128),
  routing_key    VARBINARY(100),
  schema_id      VARBINARY(128),
  schema_version INT            NOT NULL,
  dedup_key      VARBINARY(255),
  occurred_at    DATETIME(6)    NOT NULL,
  priority       SMALLINT       NOT NULL,
  correlation_id VARBINARY(128),
  causation_id   VARBINARY(128),
  headers        LONGTEXT,
  content_type   VARBINARY(128),
  payload        LONGBLOB       NOT NULL,
  created_at     DATETIME(6)    NOT NULL,
  available_at   DATETIME(6),
  attempts       INT            NOT NULL,
  replay         INT            NOT NULL,
  last_error     TEXT,
  final          TINYINT        NOT NULL,
  destination    SMALLINT GENERATED ALWAYS AS (lane DIV 1024) STORED,
  PRIMARY KEY (lane, seq),
  UNIQUE KEY id (id, lane),
  KEY seq (destination, seq, priority, attempts)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Events of the backlogs that are not due: failed events that wait for their
-- next attempt, and replayed events. lane is as in backlog.
CREATE TABLE IF NOT EXISTS {backlog_delayed} (
  id             BINARY(16)     NOT NULL,
  lane           SMALLINT       NOT NULL,
  seq            BIGINT         NOT NULL,
  type           VARBINARY(128) NOT NULL,
  aggregate_type VARBINARY(64)  NOT NULL,
  aggregate_id   VARBINARY(128),
  tenant_id      VARBINARY(64),
  topic          VARBINARY(128),
  routing_key    VARBINARY(100),
  schema_id      VARBINARY(128),
  schema_version INT            NOT NULL,
  dedup_key      VARBINARY(255),
  occurred_at    DATETIME(6)    NOT NULL,
  priority       SMALLINT       NOT NULL,
  correlation_id VARBINARY(128),
  causation_id   VARBINARY(128),
  headers        LONGTEXT,
  content_type   VARBINARY(128),
  payload        LONGBLOB       NOT NULL,
  created_at     DATETIME(6)    NOT NULL,
  due_at         DATETIME(6)    NOT NULL,
  attempts       INT            NOT NULL,
  replay         INT            NOT NULL,
  holds          TINYINT        NOT NULL,
  last_error     TEXT,
  PRIMARY KEY (id, lane),
  KEY due (lane, due_at, seq),
  KEY holds (lane, holds)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Dead letters of the destinations. lane is as in backlog.
CREATE TABLE IF NOT EXISTS {backlog_dead} (
  id             BINARY(16)     NOT NULL,
  lane           SMALLINT       NOT NULL,
  seq            BIGINT         NOT NULL,
  type           VARBINARY(128) NOT NULL,
  aggregate_type VARBINARY(64)  NOT NULL,
  aggregate_id   VARBINARY(128),
  tenant_id      VARBINARY(64),
  topic          VARBINARY(128),
  routing_key    VARBINARY(100),
  schema_id      VARBINARY(128),
  schema_version INT            NOT NULL,
  dedup_key      VARBINARY(255),
  occurred_at    DATETIME(6)    NOT NULL,
  priority       SMALLINT       NOT NULL,
  correlation_id VARBINARY(128),
  causation_id   VARBINARY(128),
  headers        LONGTEXT,
  content_type   VARBINARY(128),
  payload        LONGBLOB       NOT NULL,
  created_at     DATETIME(6)    NOT NULL,
  attempts       INT            NOT NULL,
  replay         INT            NOT NULL,
  holds          TINYINT        NOT NULL,
  last_error     TEXT,
  died_at        DATETIME(6)    NOT NULL,
  destination    SMALLINT GENERATED ALWAYS AS (lane DIV 1024) STORED,
  PRIMARY KEY (id, lane),
  KEY seq (lane, seq),
  KEY holds (lane, holds),
  KEY died_at (destination, died_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
DROP PROCEDURE IF EXISTS {settle_divert}
-- next
-- Does the same as settle, with the same first arguments and outcomes, and
-- copies rows of p_done to the backlogs of destinations before it removes them.
-- p_divert: [[number of the destination, lane, id, attempts, delay in
-- microseconds or null, final, error]] in the order of the ids. Rows for
-- destinations that are not registered are not copied. The share locks keep the
-- registered ones until the commit; so pausing a destination waits for running
-- settlements.
--
-- The procedure locks the rows before it copies them: a row that another
-- session moves at the same time must be removed and copied, or neither. The
-- number of rows found for p_divert is checked like the numbers of moved rows.
-- An event whose id is already in the backlog, because the id was written
-- twice, stays as it is there.
--
-- settle stays as it is: a settlement without diversions costs no more than
-- before, and needs no new EXECUTE privilege.
CREATE PROCEDURE {settle_divert}(
  IN p_fences LONGBLOB, IN p_done LONGBLOB, IN p_history TINYINT, IN p_retry LONGBLOB, IN p_dead LONGBLOB, IN p_free LONGBLOB,
  IN p_divert LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY INVOKER
settling: BEGIN
  DECLARE v_fences LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_fences USING utf8mb4);
  DECLARE v_done LONGTEXT CHARACTER SET utf8mb4;
  DECLARE v_retry LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_retry USING utf8mb4);
  DECLARE v_dead LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_dead USING utf8mb4);
  DECLARE v_free LONGTEXT CHARACTER SET utf8mb4;
  DECLARE v_divert LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_divert USING utf8mb4);
  DECLARE v_held, v_at, v_ready, v_copied, v_moved, v_part, v_diverted, v_keys INT DEFAULT 0;
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

  SELECT COUNT(*) INTO v_part FROM {destination} FORCE INDEX (PRIMARY) /*M! LOCK IN SHARE MODE */ /*!80001 FOR SHARE */;
  SELECT COUNT(*) INTO v_part FROM JSON_TABLE(v_divert, '$[*]' COLUMNS (lane INT PATH '$[1]', id CHAR(32) PATH '$[2]')) AS r
  STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
  FOR UPDATE /*!80001 OF o */;
  IF v_part > 0 THEN
    INSERT INTO {backlog} (lane, seq, {events}, created_at, available_at, attempts, replay, last_error, final)
    SELECT o.lane + 1024 * n.number, o.seq, {o.events}, o.created_at, UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, r.attempts, 0, r.error, r.final
    FROM JSON_TABLE(v_divert, '$[*]' COLUMNS (number INT PATH '$[0]', lane INT PATH '$[1]', id CHAR(32) PATH '$[2]', attempts INT PATH '$[3]',
      delay BIGINT PATH '$[4]', final INT PATH '$[5]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[6]')) AS r
    STRAIGHT_JOIN {destination} AS n FORCE INDEX (PRIMARY) ON n.number = r.number
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    LEFT JOIN {backlog_delayed} AS l FORCE INDEX (PRIMARY) ON l.id = o.id AND l.lane = o.lane + 1024 * n.number
    LEFT JOIN {backlog_dead} AS d FORCE INDEX (PRIMARY) ON d.id = o.id AND d.lane = o.lane + 1024 * n.number
    WHERE l.id IS NULL AND d.id IS NULL
    ON DUPLICATE KEY UPDATE {backlog}.seq = {backlog}.seq;
  END IF;
  SET v_diverted = v_part;
  IF v_diverted < JSON_LENGTH(v_divert) THEN
    SELECT COUNT(*) INTO v_part FROM JSON_TABLE(v_divert, '$[*]' COLUMNS (lane INT PATH '$[1]', id CHAR(32) PATH '$[2]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    FOR UPDATE /*!80001 OF o */;
    IF v_part > 0 THEN
      INSERT INTO {backlog} (lane, seq, {events}, created_at, available_at, attempts, replay, last_error, final)
      SELECT o.lane + 1024 * n.number, o.seq, {o.events}, o.created_at, UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, r.attempts, o.replay, r.error, r.final
      FROM JSON_TABLE(v_divert, '$[*]' COLUMNS (number INT PATH '$[0]', lane INT PATH '$[1]', id CHAR(32) PATH '$[2]', attempts INT PATH '$[3]',
        delay BIGINT PATH '$[4]', final INT PATH '$[5]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[6]')) AS r
      STRAIGHT_JOIN {destination} AS n FORCE INDEX (PRIMARY) ON n.number = r.number
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane
      LEFT JOIN {backlog_delayed} AS l FORCE INDEX (PRIMARY) ON l.id = o.id AND l.lane = o.lane + 1024 * n.number
      LEFT JOIN {backlog_dead} AS d FORCE INDEX (PRIMARY) ON d.id = o.id AND d.lane = o.lane + 1024 * n.number
      WHERE l.id IS NULL AND d.id IS NULL
      ON DUPLICATE KEY UPDATE {backlog}.seq = {backlog}.seq;
    END IF;
    SET v_diverted = v_diverted + v_part;
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

  IF v_moved < v_ready + JSON_LENGTH(v_done) + JSON_LENGTH(v_retry) + JSON_LENGTH(v_dead) OR v_moved <> v_copied
    OR v_diverted < JSON_LENGTH(v_divert) THEN
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
-- next
DROP PROCEDURE IF EXISTS {settle_backlog}
-- next
-- Records results in the backlog of one destination, as settle does in the
-- outbox. p_base is added to the lanes of the results; the fences are those of
-- the lanes without it. p_history asks for the delivery time of done events in
-- the history, if they are there. p_fences, p_done, p_retry, p_dead and the
-- outcomes are as for settle, without a condition in p_done. Dedup keys have
-- been freed when the events left the outbox. Indexes: id of backlog and of the
-- history, primary keys of backlog_delayed and lane.
CREATE PROCEDURE {settle_backlog}(
  IN p_base INT, IN p_fences LONGBLOB, IN p_done LONGBLOB, IN p_history TINYINT, IN p_retry LONGBLOB, IN p_dead LONGBLOB
)
MODIFIES SQL DATA SQL SECURITY INVOKER
settling: BEGIN
  DECLARE v_fences LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_fences USING utf8mb4);
  DECLARE v_done LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_done USING utf8mb4);
  DECLARE v_retry LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_retry USING utf8mb4);
  DECLARE v_dead LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_dead USING utf8mb4);
  DECLARE v_held, v_copied, v_moved, v_part INT DEFAULT 0;
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

  IF JSON_LENGTH(v_done) > 0 THEN
    DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base;
    SET v_moved = ROW_COUNT();
    IF v_moved < JSON_LENGTH(v_done) THEN
      DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {backlog_delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
    SET v_copied = v_moved;
  END IF;

  IF JSON_LENGTH(v_retry) > 0 THEN
    UPDATE JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
      delay BIGINT PATH '$[3]', holds INT PATH '$[4]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[5]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {backlog_delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay
    SET o.due_at = UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, o.attempts = r.attempts, o.holds = r.holds, o.last_error = r.error;
    SET v_part = ROW_COUNT(), v_moved = v_moved + v_part, v_copied = v_copied + v_part;
    IF v_part < JSON_LENGTH(v_retry) THEN
      INSERT INTO {backlog_delayed} (lane, seq, {events}, created_at, due_at, attempts, replay, holds, last_error)
      SELECT o.lane, o.seq, {o.events}, o.created_at, UTC_TIMESTAMP(6) + INTERVAL r.delay MICROSECOND, r.attempts, o.replay, r.holds, r.error
      FROM JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
        delay BIGINT PATH '$[3]', holds INT PATH '$[4]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[5]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
      SET v_copied = v_copied + ROW_COUNT();
      DELETE o FROM JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
  END IF;

  IF JSON_LENGTH(v_dead) > 0 THEN
    INSERT INTO {backlog_dead} (lane, seq, {events}, created_at, attempts, replay, holds, last_error, died_at)
    SELECT o.lane, o.seq, {o.events}, o.created_at, r.attempts, o.replay, r.holds, r.error, UTC_TIMESTAMP(6)
    FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
      holds INT PATH '$[3]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[4]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
    SET v_copied = v_copied + ROW_COUNT();
    DELETE o FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
    SET v_part = ROW_COUNT(), v_moved = v_moved + v_part;
    IF v_part < JSON_LENGTH(v_dead) THEN
      INSERT INTO {backlog_dead} (lane, seq, {events}, created_at, attempts, replay, holds, last_error, died_at)
      SELECT o.lane, o.seq, {o.events}, o.created_at, r.attempts, o.replay, r.holds, r.error, UTC_TIMESTAMP(6)
      FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
        holds INT PATH '$[3]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[4]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {backlog_delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
      SET v_copied = v_copied + ROW_COUNT();
      DELETE o FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
      STRAIGHT_JOIN {backlog_delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = r.replay;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
  END IF;

  IF v_moved < JSON_LENGTH(v_done) + JSON_LENGTH(v_retry) + JSON_LENGTH(v_dead) OR v_moved <> v_copied THEN
    ROLLBACK;
    SELECT 2 AS outcome, -1 AS lane, NULL AS id
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {backlog} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = COALESCE(r.replay, o.replay)
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', replay INT PATH '$[6]')) AS r
    STRAIGHT_JOIN {backlog_delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane + p_base AND o.replay = COALESCE(r.replay, o.replay);
    LEAVE settling;
  END IF;

  IF p_history AND JSON_LENGTH(v_done) > 0 THEN
    UPDATE JSON_TABLE(v_done, '$[*]' COLUMNS (id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {history} AS h FORCE INDEX (id) ON h.id = UNHEX(r.id)
    SET h.done_at = UTC_TIMESTAMP(6);
  END IF;
  COMMIT;
  SELECT 0 AS outcome, -1 AS lane, NULL AS id;
END
