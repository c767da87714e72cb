package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// openServer connects to a database and returns it with its contenders.
func openServer(ctx context.Context, name string) (*drainServer, error) {
	switch name {
	case "postgres":
		s, err := connectPostgres(ctx)
		if err != nil {
			return nil, err
		}
		return &drainServer{
			name: "postgres", version: s.version, drainers: s.drainers, hold: s.holdSnapshot, pg: s, close: s.close,
		}, nil
	case "sqlite":
		return openSQLiteServer()
	}
	return openMySQLServer(ctx, name)
}

// drainers are the contenders on PostgreSQL.
func (s *pgServer) drainers(peers bool) []drainer {
	list := []drainer{
		s.floor(floorName, pgFloorDrain{batch: 500}),
		s.floor("floor, 1000 a batch", pgFloorDrain{batch: 1000}),
		s.floor("floor, synchronous commit", pgFloorDrain{batch: 500, sync: true}),
	}
	list = append(list, waybillDrainers(dropped, s.waybill)...)
	if peers {
		list = append(list, s.oagudoDrainers()...)
		list = append(list, s.watermillQueueDrainers()...)
	}
	list = append(list,
		s.floor(floorName, pgFloorDrain{batch: 500, history: true}),
		s.floor("floor, 1000 a batch", pgFloorDrain{batch: 1000, history: true}),
		s.floor("floor, synchronous commit", pgFloorDrain{batch: 500, history: true, sync: true}),
		s.floor("floor, one statement", pgFloorDrain{batch: 500, history: true, move: true}),
	)
	list = append(list, waybillDrainers(kept, s.waybill)...)
	if peers {
		list = append(list, s.riverDrainers()...)
		list = append(list, s.watermillLogDrainers()...)
	}
	return list
}

// waybillDrainers are the ways to run Waybill.
func waybillDrainers(group string, with func(name, group string, cfg relay.Config, single bool) drainer) []drainer {
	usual, tuned, wide := relay.Config{}, tunedRelay, relay.Config{Workers: 256}
	if group == dropped {
		usual.HistoryRetention, tuned.HistoryRetention, wide.HistoryRetention = -1, -1, -1
	}
	slow := with("waybill, one event a call, 256 workers", group, wide, true)
	slow.slow = true
	return []drainer{
		with("waybill", group, usual, false),
		with("waybill, one event a call", group, usual, true),
		with("waybill, tuned", group, tuned, false),
		slow,
	}
}

// tunedRelay is the fastest configuration: larger batches, enough of them in
// memory, and no linger.
var tunedRelay = relay.Config{Workers: 64, BatchSize: 1000, ColdQueue: 8000, Linger: -1}

// batchSink is a handler for whole batches, like a broker's client.
type batchSink struct{ l *ledger }

// Deliver implements [waybill.Sink].
func (s batchSink) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	if s.l.pause > 0 {
		time.Sleep(s.l.pause)
	}
	for i := range batch {
		s.l.note(numberOf(batch[i].Payload))
	}
	return make([]error, len(batch))
}

// drainRelay runs a relay until every event was handled and settled.
func drainRelay(ctx context.Context, db driver.Relay, cfg relay.Config, sink waybill.Sink, l *ledger) error {
	settled := make(chan struct{})
	var n atomic.Int64
	cfg.Observe = observe.Hooks{Settled: func(info observe.SettledInfo) {
		if before := n.Load(); info.Err == nil && n.Add(int64(info.Events)) >= l.want && before < l.want {
			close(settled)
		}
	}}
	return runRelay(ctx, db, cfg, sink, l, settled)
}

// runRelay runs a relay until done.
func runRelay(ctx context.Context, db driver.Relay, cfg relay.Config, sink waybill.Sink, l *ledger, done <-chan struct{}) error {
	r, err := relay.New(testroles.Of[any](db), sink, cfg)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	l.start = time.Now()
	go func() { ended <- r.Run(running) }()
	select {
	case <-done:
		l.stop()
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-ended:
		return fmt.Errorf("the relay ended early: %w", err)
	}
	stop()
	if ended := <-ended; ended != nil {
		return ended
	}
	return err
}

// waybill is Waybill on PostgreSQL, loaded through its own API.
func (s *pgServer) waybill(name, group string, cfg relay.Config, single bool) drainer {
	return drainer{name: name, group: group, role: roleOwn, open: func(ctx context.Context) (*stage, error) {
		f, db, err := s.waybillField(ctx)
		if err != nil {
			return nil, err
		}
		st := f.waybillStage(db)
		st.drain = func(ctx context.Context, l *ledger) error {
			return drainRelay(ctx, db.Driver().Relay, cfg, sinkFor(l, single), l)
		}
		return st, nil
	}}
}

// sinkFor returns a handler of one event, or of a batch.
func sinkFor(l *ledger, single bool) waybill.Sink {
	if !single {
		return batchSink{l}
	}
	return relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		l.handle(d.Payload)
		return nil
	})
}

// waybillField is a fresh schema with Waybill's tables.
func (s *pgServer) waybillField(ctx context.Context) (*field, *pgstore.Store, error) {
	f, err := s.fresh(ctx)
	if err != nil {
		return nil, nil, err
	}
	db, err := pgstore.New(f.pool, pgstore.Config{})
	if err != nil {
		return nil, nil, err
	}
	_, err = db.Migrate(ctx)
	return f, db, err
}

// waybillStage is a stage over Waybill's tables without the drain.
func (f *field) waybillStage(db *pgstore.Store) *stage {
	return &stage{
		load: func(ctx context.Context, n int) error { return loadEvents(ctx, db.Driver().Outbox, n) },
		calm: f.calm, gauge: f.gauge, close: f.close, statements: f.statements(), left: f.counting(`SELECT count(*) FROM waybill_outbox`),
	}
}

// counting returns a function that queries a number.
func (f *field) counting(query string) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		err = f.pool.QueryRow(ctx, query).Scan(&n)
		return n, err
	}
}

// loadBatch is the number of events per transaction while a backlog is loaded.
const loadBatch = 1000

// loadEvents writes events 0 to n-1.
func loadEvents[T any](ctx context.Context, db driver.Outbox[T], n int) error {
	box, err := outbox.New(driver.Roles[T]{Outbox: db}, outbox.Config{})
	if err != nil {
		return err
	}
	for from := 0; from < n; from += loadBatch {
		evs := numberedEvents(from, min(from+loadBatch, n))
		if err := box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) }); err != nil {
			return err
		}
	}
	return nil
}

// pgFloorDrain does the same work by hand, on Waybill's tables: read a batch of
// a lane in order, deliver it, delete it (with history: copy it first, in the
// same transaction). One connection, no lease, no retries. As with Waybill, a
// lost acknowledgment only means another delivery, so it need not be flushed;
// sync flushes it nevertheless.
type pgFloorDrain struct {
	batch         int
	history, sync bool
	move          bool // copy and delete in one statement
}

var (
	floorColumns = strings.Join(eventrow.Columns(), ", ")
	floorRead    = `SELECT seq, ` + floorColumns + `, created_at FROM waybill_outbox WHERE lane = $1 AND seq > $2 ORDER BY seq LIMIT $3`
	floorKeep    = `INSERT INTO waybill_history (lane, seq, ` + floorColumns + `, created_at, attempts, replay, done_at)
SELECT lane, seq, ` + floorColumns + `, created_at, 0, 0, clock_timestamp() FROM waybill_outbox WHERE id = ANY($1)`
	floorMove = `WITH gone AS (DELETE FROM waybill_outbox WHERE id = ANY($1) RETURNING lane, seq, ` + floorColumns + `, created_at)
INSERT INTO waybill_history (lane, seq, ` + floorColumns + `, created_at, attempts, replay, done_at)
SELECT lane, seq, ` + floorColumns + `, created_at, 0, 0, clock_timestamp() FROM gone`
)

const (
	floorDelete  = `DELETE FROM waybill_outbox WHERE id = ANY($1)`
	floorPayload = 17 // the index of the payload in floorRead
)

func (s *pgServer) floor(name string, h pgFloorDrain) drainer {
	group := dropped
	if h.history {
		group = kept
	}
	return drainer{name: name, group: group, role: roleFloor, yardstick: name == floorName, open: func(ctx context.Context) (*stage, error) {
		f, db, err := s.waybillField(ctx)
		if err != nil {
			return nil, err
		}
		st := f.waybillStage(db)
		st.drain = func(ctx context.Context, l *ledger) error {
			conn, err := f.pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			if !h.sync {
				if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
					return err
				}
			}
			l.start = time.Now()
			err = h.drain(ctx, conn.Conn(), l)
			l.stop()
			return err
		}
		return st, nil
	}}
}

// drain empties the lanes in turn, a batch each, until all are empty.
func (h pgFloorDrain) drain(ctx context.Context, conn *pgx.Conn, l *ledger) error {
	var floor [lanes]int64
	var empty [lanes]bool
	ids := make([]pgtype.UUID, 0, h.batch)
	for left := lanes; left > 0; {
		for lane := range lanes {
			if empty[lane] {
				continue
			}
			var err error
			if ids, floor[lane], err = h.read(ctx, conn, lane, floor[lane], ids[:0], l); err != nil {
				return err
			}
			if len(ids) < h.batch {
				empty[lane] = true
				left--
			}
			if len(ids) == 0 {
				continue
			}
			if err := h.settle(ctx, conn, ids); err != nil {
				return err
			}
		}
	}
	return nil
}

// read delivers a batch and returns its ids. The values are used in place, in
// the connection's buffer.
func (h pgFloorDrain) read(ctx context.Context, conn *pgx.Conn, lane int, after int64, ids []pgtype.UUID, l *ledger) ([]pgtype.UUID, int64, error) {
	rows, err := conn.Query(ctx, floorRead, lane, after, h.batch)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	var seq pgtype.Int8
	for rows.Next() {
		values := rows.RawValues()
		if err := conn.TypeMap().Scan(pgtype.Int8OID, pgtype.BinaryFormatCode, values[0], &seq); err != nil {
			return nil, 0, err
		}
		after = seq.Int64
		id := pgtype.UUID{Valid: true}
		copy(id.Bytes[:], values[1])
		ids = append(ids, id)
		l.handle(values[floorPayload])
	}
	return ids, after, rows.Err()
}

// settle records that a batch was delivered: one statement, or two in one round
// trip and one transaction.
func (h pgFloorDrain) settle(ctx context.Context, conn *pgx.Conn, ids []pgtype.UUID) error {
	if !h.history || h.move {
		statement := floorDelete
		if h.move {
			statement = floorMove
		}
		_, err := conn.Exec(ctx, statement, ids)
		return err
	}
	b := &pgx.Batch{}
	b.Queue(floorKeep, ids)
	b.Queue(floorDelete, ids)
	return conn.SendBatch(ctx, b).Close()
}
