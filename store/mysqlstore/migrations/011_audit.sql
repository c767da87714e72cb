-- The changes of operators. One row is one change; its transactions add to the
-- count. Texts compare as bytes.
CREATE TABLE IF NOT EXISTS {audit} (
  id          BINARY(16)      NOT NULL,
  at          DATETIME(6)     NOT NULL,
  actor       VARBINARY(255)  NOT NULL,
  via         VARBINARY(255)  NOT NULL,
  address     VARBINARY(255)  NOT NULL,
  action      VARBINARY(64)   NOT NULL,
  destination VARBINARY(255)  NOT NULL,
  target      VARBINARY(4000) NOT NULL,
  affected    BIGINT          NOT NULL,
  PRIMARY KEY (id),
  KEY at (at, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET=utf8mb4 COLLATE=utf8mb4_bin
