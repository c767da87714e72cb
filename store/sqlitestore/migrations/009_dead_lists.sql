-- Lists and counts of the dead letters of one type, or of one aggregate.
CREATE INDEX {index:dead_type_idx} ON "{prefix}dead" (lane, type, seq)
-- next
CREATE INDEX {index:dead_aggregate_idx} ON "{prefix}dead" (lane, aggregate_id, seq)
-- next
CREATE INDEX {index:backlog_dead_type_idx} ON "{prefix}backlog_dead" (lane, type, seq)
-- next
CREATE INDEX {index:backlog_dead_aggregate_idx} ON "{prefix}backlog_dead" (lane, aggregate_id, seq)
