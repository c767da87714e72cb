DROP PROCEDURE IF EXISTS {add_report}
-- next
-- What a node says about itself, as JSON; NULL for programs without reports.
-- The procedure adds the column once: a migration that was interrupted runs
-- again.
CREATE PROCEDURE {add_report}()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  SELECT COUNT(*) INTO v_there FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = '{prefix}node' AND column_name = 'report';
  IF v_there = 0 THEN
    ALTER TABLE {node} ADD COLUMN report VARBINARY(16384);
  END IF;
END
-- next
CALL {add_report}()
-- next
DROP PROCEDURE {add_report}
-- next
DROP PROCEDURE IF EXISTS {heartbeat_report}
-- next
-- heartbeat with the report of the node. Programs without reports call
-- heartbeat.
CREATE PROCEDURE {heartbeat_report}(IN p_id BINARY(16), IN p_relay VARBINARY(255), IN p_lease BIGINT, IN p_report VARBINARY(16384))
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
    INSERT INTO {node} (id, relay, expires_at, report) VALUES (p_id, p_relay, v_now + INTERVAL p_lease MICROSECOND, p_report)
    ON DUPLICATE KEY UPDATE relay = p_relay, expires_at = v_now + INTERVAL p_lease MICROSECOND, report = p_report;
    DELETE FROM {node} WHERE expires_at < v_now - INTERVAL 1 DAY AND id <> p_id;
  END IF;
  COMMIT;
  SELECT 0 AS kind, 0 AS lane, 0 AS epoch, p_id AS id, v_other AS relay, 0 AS live FROM DUAL WHERE v_other IS NOT NULL
  UNION ALL SELECT 1, 0, 0, n.id, n.relay, 1 FROM {node} AS n WHERE n.expires_at > v_now
  UNION ALL SELECT 2, l.lane, l.epoch, l.owner, '', EXISTS (SELECT 1 FROM {node} AS m WHERE m.id = l.owner AND m.expires_at > v_now)
  FROM {lane} AS l;
END
