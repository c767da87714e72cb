-- Forgetting what was delivered, or given up, long ago: the oldest first.
CREATE INDEX "{prefix}history_done_idx" ON {history} (done_at)
-- next
CREATE INDEX "{prefix}dead_died_idx" ON {dead} (died_at)
