-- What relays have delivered. span is 1 for the counts of a node in a minute,
-- and 60 for the sums of an hour, which have no source. minute counts from
-- 1970, UTC. The empty type stands for the types for which a relay had no room.
CREATE TABLE {rollup} (
  span        smallint         NOT NULL,
  minute      integer          NOT NULL,
  source      uuid             NOT NULL,
  destination text COLLATE "C" NOT NULL,
  type        text COLLATE "C" NOT NULL,
  delivered   bigint           NOT NULL,
  failed      bigint           NOT NULL,
  dead        bigint           NOT NULL,
  CONSTRAINT "{prefix}rollup_pkey" PRIMARY KEY (span, minute, source, destination, type)
)
