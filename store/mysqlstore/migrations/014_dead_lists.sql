DROP PROCEDURE IF EXISTS {add_lists}
-- next
-- Lists and counts of dead letters: of all, of one type, and of one aggregate.
-- The procedure adds the indexes of a table once: a migration that was
-- interrupted runs again.
CREATE PROCEDURE {add_lists}()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  SELECT COUNT(*) INTO v_there FROM information_schema.statistics
  WHERE table_schema = DATABASE() AND table_name = '{prefix}dead' AND index_name = 'listed';
  IF v_there = 0 THEN
    ALTER TABLE {dead} ADD KEY listed (seq), ADD KEY type (type, seq), ADD KEY aggregate (aggregate_id, seq);
  END IF;
  SELECT COUNT(*) INTO v_there FROM information_schema.statistics
  WHERE table_schema = DATABASE() AND table_name = '{prefix}backlog_dead' AND index_name = 'listed';
  IF v_there = 0 THEN
    ALTER TABLE {backlog_dead} ADD KEY listed (destination, seq), ADD KEY type (destination, type, seq),
      ADD KEY aggregate (destination, aggregate_id, seq);
  END IF;
END
-- next
CALL {add_lists}()
-- next
DROP PROCEDURE {add_lists}
