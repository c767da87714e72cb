package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// finishDeliveries settles delivered events in the caller's transaction. It
// settles all events or none: every fence must be held. $1 to $3: fences, each
// once, $4: ids, $5: the ids that are kept in the history. result is heldLanes
// or allHeld.
//
// The lanes' rows stay locked until the transaction ends, so that a takeover
// waits for the transaction. Rows are found by id: unique id of outbox, primary
// key of delayed. The statement records that the history has gaps only if this
// is not recorded yet: the write would lock the setting's row, and concurrent
// transactions of this kind would wait for each other.
func finishDeliveries(result string) string {
	return strings.ReplaceAll(`WITH fence AS MATERIALIZED (
  SELECT l.lane FROM {lane} l JOIN unnest($1::smallint[], $2::bigint[], $3::uuid[]) AS f(lane, epoch, token)
    ON l.lane = f.lane AND l.epoch = f.epoch AND l.token = f.token
  ORDER BY l.lane FOR SHARE OF l
), held AS MATERIALIZED (
  SELECT lane FROM fence WHERE (SELECT count(*) FROM fence) = cardinality($1::smallint[])
), done AS (
  DELETE FROM {outbox} WHERE id = ANY($4::uuid[]) AND lane IN (SELECT lane FROM held)
  RETURNING lane, seq, {events}, created_at, 0 AS attempts, 0 AS replay
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY($4::uuid[]) AND lane IN (SELECT lane FROM held)
  RETURNING lane, seq, {events}, created_at, attempts, replay
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), freed AS (
  DELETE FROM {dedup} d USING gone g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), kept AS (
  INSERT INTO {history} (lane, seq, {events}, created_at, attempts, replay, done_at)
  SELECT *, clock_timestamp() FROM gone WHERE id = ANY($5::uuid[])
), noted AS (
  INSERT INTO {setting} (name, value)
  SELECT 'history_from', 'never' WHERE EXISTS (SELECT FROM gone WHERE id <> ALL($5::uuid[]))
    AND NOT EXISTS (SELECT FROM {setting} WHERE name = 'history_from' AND value = 'never')
  ON CONFLICT (name) DO UPDATE SET value = excluded.value
)
SELECT `+result, "{events}", eventColumns)
}

// The results of finishDeliveries: the lanes whose fence is held, or, in front
// of a COMMIT, a division by zero unless all of them are.
const (
	heldLanes = `lane FROM fence`
	allHeld   = `1 / ((SELECT count(*) FROM fence) = cardinality($1::smallint[]))::integer`
)

// Finish implements [driver.Finisher].
func (s *pgxBackend) Finish(ctx context.Context, tx pgx.Tx, done []waybill.Delivery) error {
	if tx == nil {
		return fmt.Errorf("pgstore: finish: %w", waybill.ErrNoTx)
	}
	// As in Append, check that the transaction is open: outside a transaction,
	// every statement would commit by itself.
	if err := tx.SendBatch(ctx, &pgx.Batch{}).Close(); err != nil {
		return s.explain(ended(err))
	}
	if _, ours := tx.(*guard); !ours && tx.Conn() != nil && tx.Conn().PgConn().TxStatus() == idle {
		return fmt.Errorf("pgstore: finish: %w: ended by an SQL statement", waybill.ErrTxDone)
	}
	return s.finish(ctx, pgxDB{tx}, done)
}

// Finish implements [driver.Finisher].
func (s *sqlBackend) Finish(ctx context.Context, tx *sql.Tx, done []waybill.Delivery) error {
	if tx == nil {
		return fmt.Errorf("pgstore: finish: %w", waybill.ErrNoTx)
	}
	return s.finish(ctx, sqlDB{tx}, done)
}

// FinishAtCommit implements [driver.FinisherAtCommit], for the transactions of
// InTx.
func (s *pgxBackend) FinishAtCommit(_ context.Context, tx pgx.Tx, done []waybill.Delivery) (bool, error) {
	g, ours := tx.(*guard)
	if !ours || len(done) == 0 {
		return false, nil
	}
	return g.atCommit(func() *lastStatement {
		leases, args := finishArgs(pgxDB{tx}, done)
		return &lastStatement{s.sql.finishLast, args, func(err error) error {
			if sqlState(err) != divisionByZero {
				return err
			}
			lanes, _, _ := fences(leases)
			return fmt.Errorf("pgstore: finish: %w: not all of the lanes %v are held", waybill.ErrLeaseLost, lanes)
		}}
	})
}

// finishArgs returns the leases of deliveries, each once, and the arguments of
// finishDeliveries.
func finishArgs(e encoder, done []waybill.Delivery) ([]driver.Lease, []any) {
	var leases []driver.Lease
	var ids, kept []waybill.ID
	for _, d := range done {
		lease := driver.LeaseOf(&d)
		if !slices.Contains(leases, lease) {
			leases = append(leases, lease)
		}
		ids = append(ids, d.ID)
		if driver.ClaimOf(&d).History {
			kept = append(kept, d.ID)
		}
	}
	lanes, epochs, tokens := fences(leases)
	return leases, []any{e.int16s(lanes), e.int64s(epochs), e.ids(tokens), e.ids(ids), e.ids(kept)}
}

// finish settles deliveries as done in the caller's transaction.
func (c *core) finish(ctx context.Context, tx database, done []waybill.Delivery) error {
	if len(done) == 0 {
		return nil
	}
	leases, args := finishArgs(tx, done)
	held := make(map[int]bool)
	var lane int
	rows, err := tx.query(ctx, c.sql.finish, args...)
	err = collect(rows, err, func() error { held[lane] = true; return nil }, &lane)
	if err != nil {
		return c.explain(ended(err))
	}
	var lost []error
	for _, l := range leases {
		if !held[l.Lane] {
			lost = append(lost, fmt.Errorf("pgstore: finish: lane %d: %w", l.Lane, waybill.ErrLeaseLost))
		}
	}
	// Two claims of one lane, one of them stale.
	if len(lost) == 0 && len(held) < len(leases) {
		lost = append(lost, fmt.Errorf("pgstore: finish: %w", waybill.ErrLeaseLost))
	}
	return errors.Join(lost...)
}
