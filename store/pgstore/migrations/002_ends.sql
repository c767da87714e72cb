-- The purge deletes the oldest delivered events and dead letters first.
CREATE INDEX "{prefix}history_done_idx" ON {history} (done_at)
-- next
CREATE INDEX "{prefix}dead_died_idx" ON {dead} (died_at)
