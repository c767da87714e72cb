-- Lists and counts of the dead letters of one type, or of one aggregate.
CREATE INDEX "{prefix}dead_type_idx" ON {dead} (type, seq)
-- next
CREATE INDEX "{prefix}dead_aggregate_idx" ON {dead} (aggregate_id, seq)
-- next
CREATE INDEX "{prefix}backlog_dead_type_idx" ON {backlog_dead} ((lane >> 10), type, seq)
-- next
CREATE INDEX "{prefix}backlog_dead_aggregate_idx" ON {backlog_dead} ((lane >> 10), aggregate_id, seq)
