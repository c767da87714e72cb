-- What relays have delivered. span is 1 for the counts of a node in a minute,
-- and 60 for the sums of an hour, which have no source. minute counts from
-- 1970, UTC. The empty type stands for the types for which a relay had no room.
CREATE TABLE IF NOT EXISTS {rollup} (
  span        TINYINT        NOT NULL,
  minute      INT            NOT NULL,
  source      BINARY(16)     NOT NULL,
  destination VARBINARY(64)  NOT NULL,
  type        VARBINARY(128) NOT NULL,
  delivered   BIGINT         NOT NULL,
  failed      BIGINT         NOT NULL,
  dead        BIGINT         NOT NULL,
  PRIMARY KEY (span, minute, source, destination, type)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
-- next
DROP PROCEDURE IF EXISTS {heartbeat_counts}
-- next
-- heartbeat_report with the counts of the node: JSON
-- [[minute, source, destination, type, delivered, failed, dead]]. Programs
-- without counts call heartbeat_report.
CREATE PROCEDURE {heartbeat_counts}(IN p_id BINARY(16), IN p_relay VARBINARY(255), IN p_lease BIGINT, IN p_report VARBINARY(16384),
  IN p_counts LONGBLOB)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_counts LONGTEXT CHARACTER SET utf8mb4 DEFAULT CONVERT(p_counts USING utf8mb4);
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
    IF v_counts IS NOT NULL THEN
      INSERT INTO {rollup} (span, minute, source, destination, type, delivered, failed, dead)
      SELECT 1, r.at, UNHEX(r.part), r.place, r.kind, r.done, r.refused, r.buried
      FROM JSON_TABLE(v_counts, '$[*]' COLUMNS (at INT PATH '$[0]', part CHAR(32) PATH '$[1]', place VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[2]',
        kind VARCHAR(128) CHARACTER SET utf8mb4 PATH '$[3]', done BIGINT PATH '$[4]', refused BIGINT PATH '$[5]', buried BIGINT PATH '$[6]')) AS r
      ON DUPLICATE KEY UPDATE delivered = GREATEST(delivered, VALUES(delivered)), failed = GREATEST(failed, VALUES(failed)),
        dead = GREATEST(dead, VALUES(dead));
    END IF;
  END IF;
  COMMIT;
  SELECT 0 AS kind, 0 AS lane, 0 AS epoch, p_id AS id, v_other AS relay, 0 AS live FROM DUAL WHERE v_other IS NOT NULL
  UNION ALL SELECT 1, 0, 0, n.id, n.relay, 1 FROM {node} AS n WHERE n.expires_at > v_now
  UNION ALL SELECT 2, l.lane, l.epoch, l.owner, '', EXISTS (SELECT 1 FROM {node} AS m WHERE m.id = l.owner AND m.expires_at > v_now)
  FROM {lane} AS l;
END
