-- The changes of operators. One row is one change; its transactions add to the
-- count.
CREATE TABLE {audit} (
  id          BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
  at          INTEGER NOT NULL,
  actor       TEXT    NOT NULL,
  via         TEXT    NOT NULL,
  address     TEXT    NOT NULL,
  action      TEXT    NOT NULL,
  destination TEXT    NOT NULL,
  target      TEXT    NOT NULL,
  affected    INTEGER NOT NULL
) STRICT, WITHOUT ROWID
-- next
CREATE INDEX {index:audit_at_idx} ON "{prefix}audit" (at, id)
