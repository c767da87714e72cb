DROP PROCEDURE IF EXISTS {finish}
-- next
-- Records deliveries as done inside the transaction of the caller, who ends it. Arguments are JSON: fences [[lane, epoch, token]] in the
-- order of the lanes; ready and late [[lane, id, keep in the history]] in the order of the ids. Late ones were seen among the delayed
-- events; where the others are is found out here. Outcome 0 is success; 1 names a lane that is not held, and then nothing has changed.
--
-- The isolation level is the caller's, and its snapshot may be old. So whatever decides is a locking read, which shows the
-- present: the fence, and which rows there are. A locking read of a row that is not there locks the gap that it would be in, at REPEATABLE
-- READ, and producers insert there: that is why late ones are not looked for among the ready events.
--
-- The savepoint makes an error leave nothing behind, because the caller's transaction may go on. After a deadlock there is none any
-- more, and nothing to take back. Dedup keys that a producer has locked are left behind, as by a settlement.
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
-- Frees the dedup keys of events that are not pending any more, but for those that a producer has locked, and answers with the events of
-- those. Whether an event is pending is asked with its key's row in hand: an operator who replays it
-- takes the key first, so the answer cannot change before the commit. The ids, in hexadecimal, are a list in JSON. Index id of dedup,
-- unique id of outbox, primary key of delayed.
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
-- Deletes pending rows where no relay is live: ready ones by key [[lane, seq]], delayed ones by id. It answers with how many, or with the
-- name of a live relay, and then nothing has changed. The mutex is that of the heartbeat: a relay that starts at the same moment comes before
-- or after. What is deleted leaves no trace: from then on, "not found" does not mean "never was".
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
