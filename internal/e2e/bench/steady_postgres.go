package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/jackc/pgx/v5"
	oagudo "github.com/oagudo/outbox"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// Every transaction of a producer inserts an order, which stands for the
// business, and writes one event.
const (
	ordersTable = `CREATE TABLE orders (id bigserial PRIMARY KEY, note text NOT NULL)`
	orderInsert = `INSERT INTO orders (note) VALUES ($1)`
	orderNote   = "an order"
)

func order(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, orderInsert, orderNote)
	return err
}

// runners are the contenders.
func (s *pgServer) runners(peers bool) []runner {
	list := []runner{
		{name: "by hand, no relay", role: roleFloor, open: s.handLine},
		{name: "waybill, no relay", role: roleFloor, ceiling: true, open: s.waybillLine(nil, false)},
		{name: "by hand, a relay every 3 ms", role: roleFloor, open: s.handRelayLine(3*time.Millisecond, false)},
		{name: "by hand, a relay every 30 ms", role: roleFloor, open: s.handRelayLine(30*time.Millisecond, false)},
		{name: "by hand, a relay every 30 ms, history", role: roleFloor, open: s.handRelayLine(30*time.Millisecond, true)},
		{name: "waybill", role: roleOwn, open: s.waybillLine(&relay.Config{}, false)},
		{name: "waybill, no history", role: roleOwn, open: s.waybillLine(&relay.Config{HistoryRetention: -1}, false)},
		{name: "waybill, relay elsewhere", role: roleOwn, open: s.waybillLine(&relay.Config{}, true)},
	}
	if !peers {
		return list
	}
	for _, r := range []riverSettings{riverUsual, riverTuned} {
		list = append(list, runner{name: r.name, role: rolePeer, open: s.riverLine(r)})
	}
	for _, w := range []watermillSettings{watermillUsual, watermillTuned, watermillQueueTuned} {
		list = append(list, runner{name: w.name, role: rolePeer, open: s.watermillLine(w)})
	}
	for _, o := range []oagudoSettings{oagudoUsual, oagudoTuned, oagudoOptimistic} {
		list = append(list, runner{name: o.name, role: rolePeer, open: s.oagudoLine(o)})
	}
	return list
}

// apart lets every contender keep tables of its own.
func (s *pgServer) apart(runners []runner) []runner {
	for i, r := range runners {
		tables := fmt.Sprintf("%s_%d", schema, i)
		runners[i].open = func(ctx context.Context) (*line, error) {
			s.schema = tables
			defer func() { s.schema = schema }()
			l, err := r.open(ctx)
			if err != nil {
				return nil, err
			}
			closed := l.close
			l.close = func() {
				closed()
				_, _ = s.admin.Exec(context.WithoutCancel(ctx), `DROP SCHEMA `+tables+` CASCADE`)
			}
			return l, nil
		}
	}
	return runners
}

// newLine creates a line from a field.
func (f *field) newLine(ctx context.Context) (*line, error) {
	if err := f.exec(ctx, ordersTable); err != nil {
		return nil, err
	}
	return &line{gauge: f.gauge, close: f.close}, f.calm(ctx)
}

// handLine writes the same rows by hand.
func (s *pgServer) handLine(ctx context.Context) (*line, error) {
	f, _, err := s.waybillField(ctx)
	if err != nil {
		return nil, err
	}
	l, err := f.newLine(ctx)
	if err != nil {
		return nil, err
	}
	l.commit = func(ctx context.Context, n int) error { return pgFloor(ctx, f.pool, order, 1, n) }
	return l, nil
}

// handRelayLine writes with Waybill and relays by hand: the cost of two
// periodic statements for the producers, independent of their sender.
func (s *pgServer) handRelayLine(every time.Duration, history bool) func(ctx context.Context) (*line, error) {
	return func(ctx context.Context) (*line, error) {
		tables := s.schema
		l, err := s.waybillLine(nil, false)(ctx)
		if err != nil {
			return nil, err
		}
		l.start = func(ctx context.Context, handle func([]byte)) (stop func() error, err error) {
			config := s.config.ConnConfig.Copy()
			config.RuntimeParams["search_path"], config.RuntimeParams["synchronous_commit"] = tables, "off"
			conn, err := pgx.ConnectConfig(ctx, config)
			if err != nil {
				return nil, err
			}
			done, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- handRelay(ctx, conn, every, history, handle, done) }()
			return func() error {
				close(done)
				return errors.Join(<-ended, conn.Close(ctx))
			}, nil
		}
		return l, nil
	}
}

// The statements of a relay by hand for handled rows, without a check of their
// owner.
const (
	handDelete = `DELETE FROM waybill_outbox WHERE id = ANY($1::uuid[])`
	handMove   = `WITH gone AS (DELETE FROM waybill_outbox WHERE id = ANY($1::uuid[]) RETURNING lane, seq, ` + handColumns + `)
INSERT INTO waybill_history (lane, seq, ` + handColumns + `, attempts, replay, done_at) SELECT *, 0, 0, clock_timestamp() FROM gone`
	handColumns = `id, type, aggregate_type, aggregate_id, tenant_id, topic, routing_key, schema_id, schema_version, dedup_key, occurred_at, priority,
 correlation_id, causation_id, headers, content_type, payload, created_at`
)

// handRelay reads, handles and deletes, or moves to the history, until done; no
// order, no fence, one reader.
func handRelay(ctx context.Context, conn *pgx.Conn, every time.Duration, history bool, handle func([]byte), done <-chan struct{}) error {
	const limit = 1000
	settle := handDelete
	if history {
		settle = handMove
	}
	for {
		select {
		case <-done:
			return nil
		case <-time.After(every):
		}
		rows, err := conn.Query(ctx, `SELECT id, payload FROM waybill_outbox LIMIT $1`, limit)
		if err != nil {
			return err
		}
		var ids [][16]byte
		var id [16]byte
		var payload []byte
		_, err = pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
			ids = append(ids, id)
			handle(payload)
			return nil
		})
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			if _, err := conn.Exec(ctx, settle, ids); err != nil {
				return err
			}
		}
	}
}

// waybillLine is Waybill, with a relay unless cfg is nil. A remote relay is not
// notified of this process's commits: it finds events like a relay in another
// process.
func (s *pgServer) waybillLine(cfg *relay.Config, elsewhere bool) func(ctx context.Context) (*line, error) {
	return func(ctx context.Context) (*line, error) {
		f, db, err := s.waybillField(ctx)
		if err != nil {
			return nil, err
		}
		l, err := f.newLine(ctx)
		if err != nil {
			return nil, err
		}
		if l.commit, err = waybillCommit(db); err != nil {
			return nil, err
		}
		if cfg == nil {
			return l, nil
		}
		other := db
		if elsewhere {
			if other, err = pgstore.New(f.pool, pgstore.Config{}); err != nil {
				return nil, err
			}
		}
		l.start = func(ctx context.Context, handle func([]byte)) (func() error, error) {
			return startRelay(ctx, other.Driver().Relay, *cfg, handle)
		}
		return l, nil
	}
}

// startRelay runs a relay in the background; stop ends it.
func startRelay(ctx context.Context, db driver.Relay, cfg relay.Config, handle func([]byte)) (stop func() error, err error) {
	r, err := relay.New(testroles.Of[any](db), relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		handle(d.Payload)
		return nil
	}), cfg)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

func (s *pgServer) riverLine(r riverSettings) func(ctx context.Context) (*line, error) {
	return func(ctx context.Context) (*line, error) {
		f, err := s.riverField(ctx)
		if err != nil {
			return nil, err
		}
		l, err := f.newLine(ctx)
		if err != nil {
			return nil, err
		}
		producer, err := r.client(f, nil)
		if err != nil {
			return nil, err
		}
		l.commit = func(ctx context.Context, n int) error {
			return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
				if err := order(ctx, tx); err != nil {
					return err
				}
				_, err := producer.InsertTx(ctx, tx, newRiverArgs(n), nil)
				return err
			})
		}
		l.start = func(ctx context.Context, handle func([]byte)) (func() error, error) {
			c, err := r.client(f, handle)
			if err != nil {
				return nil, err
			}
			return func() error { return stopRiver(ctx, c) }, c.Start(context.WithoutCancel(ctx))
		}
		return l, nil
	}
}

func (s *pgServer) watermillLine(w watermillSettings) func(ctx context.Context) (*line, error) {
	return func(ctx context.Context) (*line, error) {
		f, err := s.watermillField(ctx, w)
		if err != nil {
			return nil, err
		}
		l, err := f.newLine(ctx)
		if err != nil {
			return nil, err
		}
		l.commit = func(ctx context.Context, n int) error {
			return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
				if err := order(ctx, tx); err != nil {
					return err
				}
				pub, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: w.schema()}, watermill.NopLogger{})
				if err != nil {
					return err
				}
				return pub.Publish(watermillTopic, newWatermillMessage(n))
			})
		}
		l.start = func(ctx context.Context, handle func([]byte)) (func() error, error) {
			sub, err := w.subscriber(f)
			if err != nil {
				return nil, err
			}
			messages, err := sub.Subscribe(context.WithoutCancel(ctx), watermillTopic)
			if err != nil {
				return nil, err
			}
			go consume(messages, handle)
			return sub.Close, nil
		}
		return l, nil
	}
}

func (s *pgServer) oagudoLine(o oagudoSettings) func(ctx context.Context) (*line, error) {
	return func(ctx context.Context) (*line, error) {
		f, err := s.oagudoField(ctx)
		if err != nil {
			return nil, err
		}
		l, err := f.newLine(ctx)
		if err != nil {
			return nil, err
		}
		db := f.sql()
		l.close = func() {
			_ = db.Close()
			f.close()
		}
		box := oagudo.NewDBContext(db, oagudo.SQLDialectPostgres)
		writer := oagudo.NewWriter(box)
		l.commit = func(ctx context.Context, n int) error {
			return writer.WriteOne(ctx, oagudo.NewMessage(numbered(n)), func(ctx context.Context, tx oagudo.TxQueryer) error {
				_, err := tx.ExecContext(ctx, orderInsert, orderNote)
				return err
			})
		}
		l.start = func(_ context.Context, handle func([]byte)) (func() error, error) {
			var options []oagudo.WriterOption
			if o.optimistic {
				options = append(options, oagudo.WithOptimisticPublisher(oagudoPublisher(handle)))
			}
			writer = oagudo.NewWriter(box, options...)
			return o.start(box, handle), nil
		}
		return l, nil
	}
}
