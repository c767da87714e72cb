package main

import (
	"context"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

const lanes = 32

func openPostgres(ctx context.Context, conns int) (*target, error) {
	cfg, err := pgxpool.ParseConfig(os.Getenv(testserver.EnvPostgres))
	if err != nil {
		return nil, err
	}
	// The statements by hand name no schema: other commands have several.
	cfg.ConnConfig.RuntimeParams["search_path"] = "bench"
	counter := &statementCounter{}
	cfg.MaxConns, cfg.MinConns = int32(conns), int32(conns)
	cfg.ConnConfig.Tracer = counter
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS bench CASCADE`); err != nil {
		return nil, err
	}
	db, err := pgstore.New(pool, pgstore.Config{Schema: "bench"})
	if err != nil {
		return nil, err
	}
	if _, err := db.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE bench.orders (id bigserial PRIMARY KEY, note text NOT NULL)`); err != nil {
		return nil, err
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	business := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO bench.orders (note) VALUES ($1)`, "an order")
		return err
	}
	return &target{
		close: pool.Close,
		reset: func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `TRUNCATE bench.orders, bench.waybill_outbox`)
			return err
		},
		count: counting(func(context.Context) (int64, error) { return counter.n.Load(), nil }),
		alone: func(ctx context.Context, _ int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return business(ctx, tx) })
		},
		floor: func(n int) func(context.Context, int) error {
			return func(ctx context.Context, worker int) error { return pgFloor(ctx, pool, business, n, worker) }
		},
		waybill: func(n int) func(context.Context, int) error {
			return func(ctx context.Context, worker int) error {
				evs := sample(n, worker)
				return box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
					if err := business(ctx, tx); err != nil {
						return err
					}
					return box.Write(ctx, tx, evs...)
				})
			}
		},
	}, nil
}

// The same columns as Waybill's, and the same round trips: BEGIN, the business
// statement, INSERT and COMMIT.
const (
	pgOne = `INSERT INTO waybill_outbox (lane, id, type, aggregate_type, aggregate_id, topic, schema_version, occurred_at, priority, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	pgMany = `INSERT INTO waybill_outbox (lane, id, type, aggregate_type, aggregate_id, topic, schema_version, occurred_at, priority, payload)
SELECT * FROM unnest($1::smallint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::timestamptz[], $9::smallint[], $10::bytea[])`
)

func pgFloor(ctx context.Context, pool *pgxpool.Pool, business func(context.Context, pgx.Tx) error, n, worker int) error {
	evs := sample(n, worker)
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := business(ctx, tx); err != nil {
		return err
	}
	now := time.Now()
	b := &pgx.Batch{}
	if n == 1 {
		ev := evs[0]
		b.Queue(pgOne, int16(driver.LaneOf("", ev.AggregateType, ev.AggregateID, lanes)), pgtype.UUID{Bytes: waybill.NewID(), Valid: true},
			ev.Type, ev.AggregateType, ev.AggregateID, ev.Type, 1, now, 0, ev.Payload)
	} else {
		lane, ids := make([]int16, n), make([]pgtype.UUID, n)
		types, aggregates, aggregateIDs := make([]string, n), make([]string, n), make([]string, n)
		versions, priorities := make([]int32, n), make([]int16, n)
		times, payloads := make([]time.Time, n), make([][]byte, n)
		for i, ev := range evs {
			lane[i] = int16(driver.LaneOf("", ev.AggregateType, ev.AggregateID, lanes))
			ids[i] = pgtype.UUID{Bytes: waybill.NewID(), Valid: true}
			types[i], aggregates[i], aggregateIDs[i] = ev.Type, ev.AggregateType, ev.AggregateID
			versions[i], times[i], payloads[i] = 1, now, ev.Payload
		}
		b.Queue(pgMany, lane, ids, types, aggregates, aggregateIDs, types, versions, times, priorities, payloads)
	}
	b.Queue("commit")
	return conn.SendBatch(ctx, b).Close()
}
