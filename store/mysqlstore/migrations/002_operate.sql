DROP PROCEDURE IF EXISTS {finish}
-- next
-- Records deliveries as done in the transaction of the caller; the caller
-- commits. Arguments are JSON. p_fences: [[lane, epoch, token]] in the order of
-- the lanes. p_ready and p_late: [[lane, id, keep in the history]] in the order
-- of the ids. The caller has read the rows of p_late from delayed; the
-- procedure looks for the rows of p_ready in both tables. Outcome 0 is success.
-- Outcome 1 names a lane that is not held, and nothing has changed.
--
-- The caller chooses the isolation level, and its snapshot can be old. Every
-- read that decides is therefore a locking read, which sees the current rows:
-- the fence, and the rows that exist. At REPEATABLE READ a locking read of a
-- missing row locks the gap, into which producers insert. The procedure
-- therefore does not look for the rows of p_late in the outbox.
--
-- After an error the procedure returns to a savepoint, because the transaction
-- of the caller can continue. After a deadlock the savepoint is gone, and the
-- server has rolled back everything. Dedup keys that a producer has locked
-- remain, as after a settlement.
CREATE PROCEDURE {finish}(IN p_fences LONGBLOB, IN p_ready LONGBLOB, IN p_late LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
finishing: BEGIN
  DECLARE v_fences LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_fences USING utf8mb4);
  DECLARE v_ready LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_ready USING utf8mb4);
  DECLARE v_late LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_late USING utf8mb4);
  DECLARE v_held, v_lost, v_found, v_moved, v_keys, v_more, v_pending INT DEFAULT 0;
  DECLARE v_tenant VARBINARY(64);
  DECLARE v_key VARBINARY(255);
  DECLARE v_id BINARY(16);
  DECLARE v_end TINYINT DEFAULT 0;
  DECLARE unlocked CURSOR FOR
    SELECT d.tenant_id, d.dedup_key, d.id
    FROM JSON_TABLE(JSON_MERGE_PRESERVE(v_ready, v_late), '$[*]' COLUMNS (id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id)
    FOR UPDATE /*!80001 OF d */ SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    BEGIN
      DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
      ROLLBACK TO SAVEPOINT waybill_finish;
    END;
    RESIGNAL;
  END;
  SAVEPOINT waybill_finish;
  SELECT COUNT(*) INTO v_held
  FROM JSON_TABLE(v_fences, '$[*]' COLUMNS (lane INT PATH '$[0]', epoch BIGINT PATH '$[1]', token CHAR(32) PATH '$[2]')) AS r
  STRAIGHT_JOIN {lane} AS l FORCE INDEX (PRIMARY) ON l.lane = r.lane
  WHERE l.epoch = r.epoch AND l.token = UNHEX(r.token)
  /*M! LOCK IN SHARE MODE */ /*!80001 FOR SHARE OF l */;
  IF v_held < JSON_LENGTH(v_fences) THEN
    SELECT MIN(r.lane) INTO v_lost
    FROM JSON_TABLE(v_fences, '$[*]' COLUMNS (lane INT PATH '$[0]', epoch BIGINT PATH '$[1]', token CHAR(32) PATH '$[2]')) AS r
    LEFT JOIN {lane} AS l FORCE INDEX (PRIMARY) ON l.lane = r.lane AND l.epoch = r.epoch AND l.token = UNHEX(r.token)
    WHERE l.lane IS NULL
    /*M! LOCK IN SHARE MODE */ /*!80001 FOR SHARE OF l */;
    SELECT 1 AS outcome, COALESCE(v_lost, -1) AS lane;
    LEAVE finishing;
  END IF;

  SELECT COUNT(*), COUNT(o.dedup_key) INTO v_found, v_keys
  FROM JSON_TABLE(v_ready, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
  STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
  FOR UPDATE /*!80001 OF o */;
  SET v_moved = v_found;
  IF v_found > 0 THEN
    INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
    SELECT o.lane, o.seq, {o.events}, o.created_at, 0, 0, UTC_TIMESTAMP(6)
    FROM JSON_TABLE(v_ready, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', keep INT PATH '$[2]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    WHERE r.keep = 1;
    DELETE o FROM JSON_TABLE(v_ready, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {outbox} AS o FORCE INDEX (id) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
  END IF;
  IF v_found < JSON_LENGTH(v_ready) THEN
    SET v_late = JSON_MERGE_PRESERVE(v_late, v_ready);
  END IF;
  IF JSON_LENGTH(v_late) > 0 THEN
    SELECT COUNT(*), COUNT(o.dedup_key) INTO v_found, v_more
    FROM JSON_TABLE(v_late, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
    STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane
    FOR UPDATE /*!80001 OF o */;
    SET v_moved = v_moved + v_found, v_keys = v_keys + v_more;
    IF v_found > 0 THEN
      INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
      SELECT o.lane, o.seq, {o.events}, o.created_at, o.attempts, o.replay, UTC_TIMESTAMP(6)
      FROM JSON_TABLE(v_late, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]', keep INT PATH '$[2]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane
      WHERE r.keep = 1;
      DELETE o FROM JSON_TABLE(v_late, '$[*]' COLUMNS (lane INT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS r
      STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(r.id) AND o.lane = r.lane;
    END IF;
  END IF;

  SELECT COUNT(*) INTO v_more
  FROM JSON_TABLE(JSON_MERGE_PRESERVE(v_ready, v_late), '$[*]' COLUMNS (keep INT PATH '$[2]')) AS r WHERE r.keep = 0;
  IF v_more > 0 AND v_moved > 0 THEN
    SELECT COUNT(*) INTO v_more FROM {setting} WHERE name = 'history_from' AND value = 'never';
    IF v_more = 0 THEN
      INSERT INTO {setting} (name, value) VALUES ('history_from', 'never') ON DUPLICATE KEY UPDATE value = 'never';
    END IF;
  END IF;
  IF v_keys > 0 THEN
    OPEN unlocked;
    FETCH unlocked INTO v_tenant, v_key, v_id;
    WHILE NOT v_end DO
      SELECT (SELECT COUNT(*) FROM {outbox} AS o WHERE o.id = v_id) + (SELECT COUNT(*) FROM {delayed} AS l WHERE l.id = v_id) INTO v_pending;
      IF v_pending = 0 THEN
        DELETE FROM {dedup} WHERE tenant_id = v_tenant AND dedup_key = v_key;
      END IF;
      FETCH unlocked INTO v_tenant, v_key, v_id;
    END WHILE;
    CLOSE unlocked;
  END IF;
  SELECT 0 AS outcome, -1 AS lane;
END
-- next
DROP PROCEDURE IF EXISTS {free_keys}
-- next
-- Deletes the dedup keys of events that are no longer pending, except keys that
-- a producer has locked, and returns the events of those. The check whether an
-- event is pending runs under the lock of its key's row: a replay takes that
-- lock first, so the result cannot change before the commit. p_ids is a JSON
-- list of hexadecimal ids. Indexes: id of dedup, unique id of the outbox,
-- primary key of delayed.
CREATE PROCEDURE {free_keys}(IN p_ids LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_ids LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_ids USING utf8mb4);
  DECLARE v_pending INT DEFAULT 0;
  DECLARE v_tenant VARBINARY(64);
  DECLARE v_key VARBINARY(255);
  DECLARE v_id BINARY(16);
  DECLARE v_end TINYINT DEFAULT 0;
  DECLARE unlocked CURSOR FOR
    SELECT d.tenant_id, d.dedup_key, d.id FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
    STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id)
    FOR UPDATE /*!80001 OF d */ SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  OPEN unlocked;
  FETCH unlocked INTO v_tenant, v_key, v_id;
  WHILE NOT v_end DO
    SELECT (SELECT COUNT(*) FROM {outbox} AS o WHERE o.id = v_id) + (SELECT COUNT(*) FROM {delayed} AS l WHERE l.id = v_id) INTO v_pending;
    IF v_pending = 0 THEN
      DELETE FROM {dedup} WHERE tenant_id = v_tenant AND dedup_key = v_key;
    END IF;
    FETCH unlocked INTO v_tenant, v_key, v_id;
  END WHILE;
  CLOSE unlocked;
  COMMIT;
  SELECT d.id FROM JSON_TABLE(v_ids, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS r
  STRAIGHT_JOIN {dedup} AS d FORCE INDEX (id) ON d.id = UNHEX(r.id)
  WHERE NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.id = d.id) AND NOT EXISTS (SELECT 1 FROM {delayed} AS l WHERE l.id = d.id);
END
-- next
DROP PROCEDURE IF EXISTS {purge_written}
-- next
-- Deletes pending rows while no relay is live: ready rows by key, p_ready
-- [[lane, seq]], and delayed rows by id, p_late. Returns the number of rows, or
-- the name of a live relay, in which case nothing has changed. The mutex is
-- that of the heartbeat, so a relay that starts at the same time starts before
-- or after the deletion. Deleted rows leave no trace: afterwards a missing
-- event can have existed.
CREATE PROCEDURE {purge_written}(IN p_ready LONGBLOB, IN p_late LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
purging: BEGIN
  DECLARE v_ready LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_ready USING utf8mb4);
  DECLARE v_late LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_late USING utf8mb4);
  DECLARE v_lanes, v_relay VARBINARY(255);
  DECLARE v_purged INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT value INTO v_lanes FROM {setting} WHERE name = 'lanes' FOR UPDATE;
  SELECT MIN(relay) INTO v_relay FROM {node} WHERE expires_at > UTC_TIMESTAMP(6);
  IF v_relay IS NOT NULL THEN
    ROLLBACK;
    SELECT 0 AS purged, v_relay AS relay;
    LEAVE purging;
  END IF;
  DELETE o FROM JSON_TABLE(v_ready, '$[*]' COLUMNS (lane INT PATH '$[0]', seq BIGINT PATH '$[1]')) AS k
  STRAIGHT_JOIN {outbox} AS o FORCE INDEX (PRIMARY) ON o.lane = k.lane AND o.seq = k.seq;
  SET v_purged = ROW_COUNT();
  DELETE o FROM JSON_TABLE(v_late, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS k
  STRAIGHT_JOIN {delayed} AS o FORCE INDEX (PRIMARY) ON o.id = UNHEX(k.id);
  SET v_purged = v_purged + ROW_COUNT();
  IF v_purged > 0 THEN
    INSERT INTO {setting} (name, value) VALUES ('history_from', 'never') ON DUPLICATE KEY UPDATE value = 'never';
  END IF;
  COMMIT;
  SELECT v_purged AS purged, NULL AS relay;
END
