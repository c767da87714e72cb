//go:build linux || darwin

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
)

// serviceTables is the service's own part of the database, and the checker's
// triggers.
//
// The trigger on the tables of events records the epoch of its lane and the
// process for every changed row. It locks the lane's row to read the epoch, so
// the record is true when the change commits, even if the statement assumed a
// different epoch.
const serviceTables = `
CREATE TABLE counter (aggregate text PRIMARY KEY, n integer NOT NULL);
CREATE TABLE ledger (
  id uuid PRIMARY KEY, aggregate text NOT NULL, number bigint NOT NULL, due timestamptz, written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE audit_lane (
  n bigserial PRIMARY KEY, lane integer NOT NULL, epoch bigint NOT NULL, token uuid, app text NOT NULL
);
CREATE FUNCTION audit_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit_lane (lane, epoch, token, app) VALUES (NEW.lane, NEW.epoch, NEW.token, current_setting('application_name'));
  RETURN NULL;
END
$$;
CREATE TRIGGER audit AFTER UPDATE ON waybill_lane FOR EACH ROW WHEN (NEW.owner IS NOT NULL) EXECUTE FUNCTION audit_lane();

CREATE TABLE audit_move (
  n bigserial PRIMARY KEY, tab text NOT NULL, op text NOT NULL, id uuid NOT NULL, lane integer NOT NULL, epoch bigint,
  attempts integer, replay integer, app text NOT NULL, at timestamptz NOT NULL
);
CREATE FUNCTION audit_move() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  app text := current_setting('application_name');
  now_epoch bigint;
  changed jsonb;
BEGIN
  IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
  IF position('#' IN app) > 0 THEN
    SELECT epoch INTO now_epoch FROM waybill_lane WHERE lane = (changed->>'lane')::smallint FOR SHARE;
  END IF;
  INSERT INTO audit_move (tab, op, id, lane, epoch, attempts, replay, app, at)
  VALUES (TG_ARGV[0], TG_OP, (changed->>'id')::uuid, (changed->>'lane')::integer, now_epoch,
    (changed->>'attempts')::integer, (changed->>'replay')::integer, app, clock_timestamp());
  RETURN NULL;
END
$$;
CREATE TRIGGER audit AFTER DELETE ON waybill_outbox FOR EACH ROW EXECUTE FUNCTION audit_move('outbox');
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON waybill_delayed FOR EACH ROW EXECUTE FUNCTION audit_move('delayed');
CREATE TRIGGER audit AFTER INSERT OR DELETE ON waybill_dead FOR EACH ROW EXECUTE FUNCTION audit_move('dead');
CREATE TRIGGER audit AFTER INSERT ON waybill_history FOR EACH ROW EXECUTE FUNCTION audit_move('history');
`

// gather reads the evidence of a run.
func gather(ctx context.Context, pool *pgxpool.Pool, folder string) (evidence, error) {
	var e evidence
	var err error
	if e.journal, err = journal.Read(filepath.Join(folder, journalFile)); err != nil {
		return e, err
	}
	if e.claims, err = readClaims(filepath.Join(folder, claimsFile)); err != nil {
		return e, err
	}
	e.ledger, err = rows(ctx, pool, `SELECT id, aggregate, number, due,
		(extract(epoch FROM pg_xact_commit_timestamp(xmin) - written_at) * 1e6)::bigint FROM ledger ORDER BY id`, func(row pgx.CollectableRow) (entry, error) {
		var id [16]byte
		var out entry
		var due *time.Time
		var open int64
		err := row.Scan(&id, &out.aggregate, &out.number, &due, &open)
		out.id, out.open = waybill.ID(id).String(), time.Duration(open)*time.Microsecond
		if due != nil {
			out.due = *due
		}
		return out, err
	})
	if err != nil {
		return e, err
	}
	e.lanes, err = rows(ctx, pool, `SELECT lane, epoch, token::text, app FROM audit_lane ORDER BY n`, func(row pgx.CollectableRow) (tenure, error) {
		var out tenure
		return out, row.Scan(&out.lane, &out.epoch, &out.token, &out.app)
	})
	if err != nil {
		return e, err
	}
	e.moves, err = rows(ctx, pool, `SELECT tab, op, id, lane, coalesce(epoch, 0), coalesce(attempts, 0), coalesce(replay, 0), app, at
		FROM audit_move ORDER BY n`, func(row pgx.CollectableRow) (move, error) {
		var id [16]byte
		var out move
		err := row.Scan(&out.table, &out.op, &id, &out.lane, &out.epoch, &out.attempts, &out.replay, &out.app, &out.at)
		out.id = waybill.ID(id).String()
		return out, err
	})
	if err != nil {
		return e, err
	}
	e.history, err = rows(ctx, pool, `SELECT id FROM waybill_history`, func(row pgx.CollectableRow) (string, error) {
		var id [16]byte
		err := row.Scan(&id)
		return waybill.ID(id).String(), err
	})
	if err != nil {
		return e, err
	}
	err = pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed)
		+ (SELECT count(*) FROM waybill_dead)`).Scan(&e.pending)
	return e, err
}

func rows[T any](ctx context.Context, pool *pgxpool.Pool, query string, scan pgx.RowToFunc[T]) ([]T, error) {
	found, err := pool.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, scan)
}

func readClaims(path string) ([]claim, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []claim
	for line := range bytes.Lines(data) {
		var c claim
		if bytes.HasSuffix(line, []byte("}\n")) && json.Unmarshal(line, &c) == nil {
			out = append(out, c)
		}
	}
	return out, nil
}
