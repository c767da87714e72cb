-- A relay reads rows with a priority ahead of a backlog. The index on seq,
-- which AUTO_INCREMENT requires, now contains the priority: the read uses the
-- index instead of the rows, and a write fills no additional index.
ALTER TABLE {outbox} DROP INDEX seq, ADD UNIQUE KEY seq (seq, priority)
