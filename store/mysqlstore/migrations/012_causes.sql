DROP PROCEDURE IF EXISTS {add_causes}
-- next
-- The cause of a dead letter groups it with others. A dead letter without a
-- cause gets it later; see driver.Causes. The procedure adds the column and its
-- index once: a migration that was interrupted runs again.
CREATE PROCEDURE {add_causes}()
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_there INT DEFAULT 0;
  SELECT COUNT(*) INTO v_there FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = '{prefix}dead' AND column_name = 'cause';
  IF v_there = 0 THEN
    ALTER TABLE {dead} ADD COLUMN cause VARBINARY(16), ADD KEY cause (cause, seq, died_at);
  END IF;
  SELECT COUNT(*) INTO v_there FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = '{prefix}backlog_dead' AND column_name = 'cause';
  IF v_there = 0 THEN
    ALTER TABLE {backlog_dead} ADD COLUMN cause VARBINARY(16), ADD KEY cause (destination, cause, seq, died_at);
  END IF;
END
-- next
CALL {add_causes}()
-- next
DROP PROCEDURE {add_causes}
