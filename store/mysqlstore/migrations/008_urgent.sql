-- A relay looks for rows with a priority ahead of a backlog. The index on seq, which AUTO_INCREMENT asks for, has the priority as well
-- now: a look goes through it and not through the rows, and a write has no index more to fill.
ALTER TABLE {outbox} DROP INDEX seq, ADD UNIQUE KEY seq (seq, priority)
