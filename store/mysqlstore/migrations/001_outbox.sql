-- Settings of the tables. This table comes first and contains the number of
-- lanes: the outbox compiles the default of a lane from it, and a migration
-- that continues after an interruption must compile the same number.
CREATE TABLE IF NOT EXISTS {setting} (
  name  VARBINARY(64)  NOT NULL,
  value VARBINARY(255) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
INSERT INTO {setting} (name, value) VALUES ('lanes', '{lanes}') ON DUPLICATE KEY UPDATE value = value
-- next
-- Ready events, read in the order of (lane, seq). A row stays from its commit
-- until the event is delivered, retried, deferred or dead. Texts are stored as
-- the bytes of their UTF-8 and compare as bytes: a collation would treat 'abc',
-- 'ABC' and 'abc ' as equal. The defaults serve producers that insert with
-- plain SQL. The id has 48 bits of milliseconds and 80 random bits. The lane of
-- an ordered event equals the result of driver.LaneOf in Go; the lane of other
-- events is derived from the id. AUTO_INCREMENT requires the index on seq.
CREATE TABLE IF NOT EXISTS {outbox} (
  id             BINARY(16)     NOT NULL DEFAULT (UNHEX(CONCAT(
                   LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000), 12, '0'),
                   HEX(RANDOM_BYTES(10))))),
  lane           SMALLINT       NOT NULL DEFAULT (CASE WHEN COALESCE(aggregate_id, '') = ''
                   THEN CONV(RIGHT(HEX(id), 8), 16, 10) % {lanes}
                   ELSE CONV(LEFT(SHA2(CONCAT(COALESCE(tenant_id, ''), 0x1f, aggregate_type, 0x1f, aggregate_id), 256), 8), 16, 10) % {lanes}
                   END),
  seq            BIGINT         NOT NULL AUTO_INCREMENT,
  type           VARBINARY(128) NOT NULL,
  aggregate_type VARBINARY(64)  NOT NULL DEFAULT '__GLOBAL__',
  aggregate_id   VARBINARY(128),
  tenant_id      VARBINARY(64),
  topic          VARBINARY(128),
  routing_key    VARBINARY(100),
  schema_id      VARBINARY(128),
  schema_version INT            NOT NULL DEFAULT 1,
  dedup_key      VARBINARY(255),
  occurred_at    DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  priority       SMALLINT       NOT NULL DEFAULT 0,
  correlation_id VARBINARY(128),
  causation_id   VARBINARY(128),
  headers        LONGTEXT,
  content_type   VARBINARY(128),
  payload        LONGBLOB       NOT NULL,
  created_at     DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  available_at   DATETIME(6),
  PRIMARY KEY (lane, seq),
  UNIQUE KEY id (id),
  UNIQUE KEY seq (seq)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Events that are not due: scheduled events, failed events that wait for their
-- next attempt, and replayed events. The relay delivers a row from this table;
-- a row never returns to the outbox. seq comes from the outbox.
CREATE TABLE IF NOT EXISTS {delayed} (
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
  attempts       INT            NOT NULL DEFAULT 0,
  replay         INT            NOT NULL DEFAULT 0,
  holds          TINYINT        NOT NULL DEFAULT 0,
  last_error     TEXT,
  PRIMARY KEY (id),
  KEY due (lane, due_at, seq),
  KEY holds (lane, holds)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Dead letters. A row stays until an operator replays or discards it, or its
-- retention passes.
CREATE TABLE IF NOT EXISTS {dead} (
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
  PRIMARY KEY (id),
  KEY seq (lane, seq),
  KEY holds (lane, holds),
  KEY died_at (died_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Delivered events in the order of their settlement. The id is not unique here;
-- it is unique in the table that the row comes from. The primary key is a
-- counter because a server can refuse tables without a primary key.
CREATE TABLE IF NOT EXISTS {history} (
  number         BIGINT         NOT NULL AUTO_INCREMENT,
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
  done_at        DATETIME(6)    NOT NULL,
  PRIMARY KEY (number),
  KEY id (id),
  KEY done_at (done_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- Dedup keys of pending events. Events without a dedup key have no row. A row
-- can outlive its event if a producer had it locked during the settlement; a
-- writer replaces a row whose event is no longer pending.
CREATE TABLE IF NOT EXISTS {dedup} (
  tenant_id VARBINARY(64)  NOT NULL,
  dedup_key VARBINARY(255) NOT NULL,
  id        BINARY(16)     NOT NULL,
  PRIMARY KEY (tenant_id, dedup_key),
  KEY id (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
-- The owner of each lane. The row of a lane changes only when its owner
-- changes.
CREATE TABLE IF NOT EXISTS {lane} (
  lane      SMALLINT NOT NULL,
  owner     BINARY(16),
  epoch     BIGINT   NOT NULL DEFAULT 0,
  token     BINARY(16),
  in_flight INT      NOT NULL DEFAULT 0,
  dirty     TINYINT  NOT NULL DEFAULT 0,
  PRIMARY KEY (lane)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
INSERT INTO {lane} (lane) VALUES {lane_numbers} ON DUPLICATE KEY UPDATE epoch = epoch
-- next
CREATE TABLE IF NOT EXISTS {node} (
  id         BINARY(16)     NOT NULL,
  relay      VARBINARY(255) NOT NULL,
  expires_at DATETIME(6)    NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
DROP PROCEDURE IF EXISTS {heartbeat}
-- next
-- Makes a node live for p_lease microseconds. Rows of the result by kind: 0 a
-- live relay of another name, in which case nothing has changed; 1 the live
-- nodes; 2 the lanes. The row with the number of lanes is the mutex: two relays
-- with different names cannot both start, and the clock is read under the
-- mutex. Nodes that expired more than a day ago are deleted. The rows of the
-- lanes are not locked, so settlements never wait for heartbeats.
CREATE PROCEDURE {heartbeat}(IN p_id BINARY(16), IN p_relay VARBINARY(255), IN p_lease BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_lanes VARBINARY(255);
  DECLARE v_other VARBINARY(255);
  DECLARE v_now DATETIME(6);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT value INTO v_lanes FROM {setting} WHERE name = 'lanes' FOR UPDATE;
  SET v_now = UTC_TIMESTAMP(6);
  SELECT MIN(relay) INTO v_other FROM {node} WHERE relay <> p_relay AND id <> p_id AND expires_at > v_now;
  IF v_other IS NULL THEN
    INSERT INTO {node} (id, relay, expires_at) VALUES (p_id, p_relay, v_now + INTERVAL p_lease MICROSECOND)
    ON DUPLICATE KEY UPDATE relay = p_relay, expires_at = v_now + INTERVAL p_lease MICROSECOND;
    DELETE FROM {node} WHERE expires_at < v_now - INTERVAL 1 DAY AND id <> p_id;
  END IF;
  COMMIT;
  SELECT 0 AS kind, 0 AS lane, 0 AS epoch, p_id AS id, v_other AS relay, 0 AS live FROM DUAL WHERE v_other IS NOT NULL
  UNION ALL SELECT 1, 0, 0, n.id, n.relay, 1 FROM {node} AS n WHERE n.expires_at > v_now
  UNION ALL SELECT 2, l.lane, l.epoch, l.owner, '', EXISTS (SELECT 1 FROM {node} AS m WHERE m.id = l.owner AND m.expires_at > v_now)
  FROM {lane} AS l;
END
-- next
DROP PROCEDURE IF EXISTS {settle}
-- next
-- Records results under the fences in one transaction that no client can
-- interrupt: a client that pauses between a lock and its commit would block an
-- acquisition of the lane for as long as its connection lives. Arguments are
-- JSON. p_fences: [[lane, epoch, token]] in the order of the lanes. p_done:
-- [[lane, id]]. p_retry: [[lane, id, attempts, delay in microseconds, holds,
-- error]]. p_dead: [[lane, id, attempts, holds, error]]. p_free: [id], the
-- events whose dedup keys are no longer needed. Ids are hexadecimal.
--
-- The procedure changes everything or nothing. If a lane is not held or a row
-- is missing, nothing has changed, and the result lists the rest for another
-- call: outcome 1 has the lanes and tokens that are held, outcome 2 the ids
-- that exist. Outcome 0 is success, with the ids of the events whose dedup keys
-- a producer had locked: a settlement never waits for a producer.
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
  DECLARE v_done LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_done USING utf8mb4);
  DECLARE v_retry LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_retry USING utf8mb4);
  DECLARE v_dead LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_dead USING utf8mb4);
  DECLARE v_free LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_free USING utf8mb4);
  DECLARE v_held, v_copied, v_moved, v_part, v_keys INT DEFAULT 0;
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

  IF JSON_LENGTH(v_done) > 0 THEN
    IF p_history THEN
      INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
      SELECT o.lane, o.seq, {o.events}, o.created_at, 0, 0, UTC_TIMESTAMP(6)
      FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_copied = ROW_COUNT();
    END IF;
    DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    SET v_moved = ROW_COUNT();
    IF v_moved < JSON_LENGTH(v_done) THEN
      IF p_history THEN
        INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
        SELECT o.lane, o.seq, {o.events}, o.created_at, o.attempts, o.replay, UTC_TIMESTAMP(6)
        FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
        STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
        SET v_copied = v_copied + ROW_COUNT();
      END IF;
      DELETE o FROM JSON_TABLE(v_done, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
    IF NOT p_history THEN
      SET v_copied = v_moved;
    END IF;
  END IF;

  IF JSON_LENGTH(v_retry) > 0 THEN
    UPDATE JSON_TABLE(v_retry, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', attempts INT PATH '$[2]',
      delay BIGINT PATH '$[3]', holds INT PATH '$[4]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[5]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane
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
        holds INT PATH '$[3]', error VARCHAR(4000) CHARACTER SET utf8mb4 PATH '$[4]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_copied = v_copied + ROW_COUNT();
      DELETE o FROM JSON_TABLE(v_dead, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
      SET v_moved = v_moved + ROW_COUNT();
    END IF;
  END IF;

  IF v_moved < JSON_LENGTH(v_done) + JSON_LENGTH(v_retry) + JSON_LENGTH(v_dead) OR v_moved <> v_copied THEN
    ROLLBACK;
    SELECT 2 AS outcome, -1 AS lane, NULL AS id
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    UNION ALL SELECT 2, o.lane, o.id FROM JSON_TABLE(JSON_ARRAY(JSON_EXTRACT(v_done, '$'), JSON_EXTRACT(v_retry, '$'), JSON_EXTRACT(v_dead, '$')),
      '$[*][*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    LEAVE settling;
  END IF;

  SELECT COUNT(*) INTO v_keys FROM (SELECT 1 AS one FROM {dedup} LIMIT 1) AS d;
  IF v_keys > 0 THEN
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
  SELECT 0 AS outcome, -1 AS lane, NULL AS id
  UNION ALL SELECT 0, -1, d.id FROM JSON_TABLE(v_free, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
  STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id)
  WHERE v_keys > 0;
END
