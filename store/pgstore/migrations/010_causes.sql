-- The cause of a dead letter groups it with others. A dead letter without a
-- cause gets it later; see driver.Causes.
ALTER TABLE {dead} ADD COLUMN cause text COLLATE "C"
-- next
CREATE INDEX "{prefix}dead_cause_idx" ON {dead} (cause, seq) INCLUDE (died_at)
-- next
ALTER TABLE {backlog_dead} ADD COLUMN cause text COLLATE "C"
-- next
CREATE INDEX "{prefix}backlog_dead_cause_idx" ON {backlog_dead} ((lane >> 10), cause, seq) INCLUDE (died_at)
