-- What a node says about itself, as JSON; NULL for programs without reports.
ALTER TABLE {node} ADD COLUMN report text
