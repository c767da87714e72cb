DROP PROCEDURE IF EXISTS {guard_lanes}
-- next
-- An event is in an existing lane, and an event with an aggregate in the lane
-- of its aggregate. A writer that has cached an earlier number of lanes would
-- put events into lanes that no relay reads, or one aggregate into two lanes.
-- The constraint refuses such rows, and its name tells the writer the number of
-- lanes. SetLanes replaces the constraint. The procedure adds it once, with the
-- number of lanes in the tables.
CREATE PROCEDURE {guard_lanes}()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_lanes, v_there INT DEFAULT 0;
  SELECT CAST(value AS UNSIGNED) INTO v_lanes FROM {setting} WHERE name = 'lanes';
  SELECT COUNT(*) INTO v_there FROM information_schema.table_constraints
  WHERE constraint_schema = DATABASE() AND table_name = '{prefix}outbox' AND LEFT(constraint_name, CHAR_LENGTH('{prefix}lanes_')) = '{prefix}lanes_';
  IF v_there = 0 THEN
    SET @waybill_guard = CONVERT(CONCAT('ALTER TABLE {outbox} ADD CONSTRAINT `{prefix}lanes_', v_lanes, '` CHECK (lane >= 0 AND lane < ', v_lanes,
      ' AND (COALESCE(aggregate_id, '''') = '''' OR lane = CONV(LEFT(SHA2(CONCAT(COALESCE(tenant_id, ''''), 0x1f, aggregate_type, 0x1f, aggregate_id), 256), 8), 16, 10) % ',
      v_lanes, '))') USING utf8mb4);
    PREPARE waybill_guard FROM @waybill_guard;
    EXECUTE waybill_guard;
    DEALLOCATE PREPARE waybill_guard;
  END IF;
END
-- next
CALL {guard_lanes}()
-- next
DROP PROCEDURE {guard_lanes}
