-- What relays have delivered. span is 1 for the counts of a node in a minute,
-- and 60 for the sums of an hour, which have no source. minute counts from
-- 1970, UTC. The empty type stands for the types for which a relay had no room.
CREATE TABLE {rollup} (
  span        INTEGER NOT NULL,
  minute      INTEGER NOT NULL,
  source      TEXT    NOT NULL,
  destination TEXT    NOT NULL,
  type        TEXT    NOT NULL,
  delivered   INTEGER NOT NULL,
  failed      INTEGER NOT NULL,
  dead        INTEGER NOT NULL,
  PRIMARY KEY (span, minute, source, destination, type)
) STRICT, WITHOUT ROWID
