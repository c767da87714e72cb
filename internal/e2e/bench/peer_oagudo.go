package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	oagudo "github.com/oagudo/outbox"
)

// oagudo/outbox has a polling reader: it reads a batch, publishes one message
// after another, and deletes the successful ones. It takes no lock: there must
// be one reader.

// oagudoTables is the schema from its documentation.
var oagudoTables = []string{
	`CREATE TABLE outbox (
  id UUID PRIMARY KEY,
  created_at TIMESTAMP WITH TIME ZONE NOT NULL,
  scheduled_at TIMESTAMP WITH TIME ZONE NOT NULL,
  metadata BYTEA,
  payload BYTEA NOT NULL,
  times_attempted INTEGER NOT NULL
)`,
	`CREATE INDEX idx_outbox_created_at ON outbox (created_at)`,
	`CREATE INDEX idx_outbox_scheduled_at ON outbox (scheduled_at)`,
}

// oagudoSettings configures a reader.
type oagudoSettings struct {
	name       string
	options    []oagudo.ReaderOption
	optimistic bool          // also publish right after the commit
	interval   time.Duration // between two batches, if it sets the pace
}

var (
	// and 100 messages each time
	oagudoUsual = oagudoSettings{name: "oagudo, default", interval: 10 * time.Second}
	oagudoTuned = oagudoSettings{name: "oagudo, tuned", options: []oagudo.ReaderOption{
		oagudo.WithInterval(time.Millisecond), oagudo.WithReadBatchSize(1000), oagudo.WithDeleteBatchSize(1000),
	}}
	oagudoOptimistic = oagudoSettings{name: "oagudo, tuned, optimistic", options: oagudoTuned.options, optimistic: true}
)

// oagudoPublisher is its handler.
type oagudoPublisher func(payload []byte)

// Publish implements oagudo.MessagePublisher.
func (p oagudoPublisher) Publish(_ context.Context, m *oagudo.Message) error {
	p(m.Payload)
	return nil
}

// oagudoField is a fresh schema with its table.
func (s *pgServer) oagudoField(ctx context.Context) (*field, error) {
	f, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return f, f.exec(ctx, oagudoTables...)
}

func (s *pgServer) oagudoDrainers() []drainer {
	var list []drainer
	for _, o := range []oagudoSettings{oagudoUsual, oagudoTuned} {
		list = append(list, drainer{name: o.name, group: dropped, role: rolePeer, paced: o.interval > 0, interval: o.interval, open: func(ctx context.Context) (*stage, error) {
			f, err := s.oagudoField(ctx)
			if err != nil {
				return nil, err
			}
			return &stage{
				load: func(ctx context.Context, n int) error { return oagudoLoad(ctx, f, n) },
				calm: f.calm, gauge: f.gauge, close: f.close, statements: f.statements(), left: f.counting(`SELECT count(*) FROM outbox`),
				drain: func(ctx context.Context, l *ledger) error { return o.drain(ctx, f, l) },
			}, nil
		}})
	}
	return list
}

// oagudoLoad copies rows: it has no way to write many at once.
func oagudoLoad(ctx context.Context, f *field, n int) error {
	start := time.Now().Add(-time.Hour)
	_, err := f.pool.CopyFrom(ctx, pgx.Identifier{"outbox"},
		[]string{"id", "created_at", "scheduled_at", "payload", "times_attempted"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			at := start.Add(time.Duration(i) * time.Microsecond)
			return []any{uuid.New(), at, at, numbered(i), 0}, nil
		}))
	return err
}

// start starts a reader; stop stops it, and returns its errors.
func (o oagudoSettings) start(db *oagudo.DBContext, handle func(payload []byte)) (stop func() error) {
	r := oagudo.NewReader(db, oagudoPublisher(handle), o.options...)
	r.Start()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			return err
		}
		var first error
		for err := range r.Errors() {
			if first == nil && !errors.Is(err, context.Canceled) {
				first = fmt.Errorf("oagudo/outbox: %w", err)
			}
		}
		return first
	}
}

func (o oagudoSettings) drain(ctx context.Context, f *field, l *ledger) error {
	db := f.sql()
	defer db.Close() //nolint:errcheck // nothing is written through it any more
	l.start = time.Now()
	stop := o.start(oagudo.NewDBContext(db, oagudo.SQLDialectPostgres), l.handle)
	err := allHandled(ctx, l)
	if err == nil {
		err = f.until(ctx, `SELECT NOT EXISTS (SELECT FROM outbox)`)
	}
	l.stop()
	if stopping := stop(); err == nil {
		err = stopping
	}
	return err
}
