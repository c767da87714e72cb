-- The changes of operators. One row is one change; its transactions add to the
-- count.
CREATE TABLE {audit} (
  id          uuid        NOT NULL,
  at          timestamptz NOT NULL,
  actor       text        NOT NULL,
  via         text        NOT NULL,
  address     text        NOT NULL,
  action      text        NOT NULL,
  destination text        NOT NULL,
  target      text        NOT NULL,
  affected    bigint      NOT NULL,
  CONSTRAINT "{prefix}audit_pkey" PRIMARY KEY (id)
)
-- next
CREATE INDEX "{prefix}audit_at_idx" ON {audit} (at, id)
