-- The cause of a dead letter groups it with others. A dead letter without a
-- cause gets it later; see driver.Causes.
ALTER TABLE {dead} ADD COLUMN cause TEXT
-- next
CREATE INDEX {index:dead_cause_idx} ON "{prefix}dead" (lane, cause, seq, died_at)
-- next
ALTER TABLE {backlog_dead} ADD COLUMN cause TEXT
-- next
CREATE INDEX {index:backlog_dead_cause_idx} ON "{prefix}backlog_dead" (lane, cause, seq, died_at)
