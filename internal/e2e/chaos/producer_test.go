//go:build linux || darwin

package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// playProducer is a process that only writes.
func playProducer(ctx context.Context, r role) error {
	pool, err := connect(ctx, r.Source, "producer")
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		return err
	}
	p, err := newProducer(r, db.Driver().Outbox, throughPGX())
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() { p.run(ctx, i) })
	}
	wg.Wait()
	return nil
}

// statements runs a producer's own statements in a transaction.
type statements[T any] struct {
	exec func(ctx context.Context, tx T, query string, args ...any) error
	scan func(ctx context.Context, tx T, to any, query string, args ...any) error
}

func throughPGX() statements[pgx.Tx] {
	return statements[pgx.Tx]{
		exec: func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		},
		scan: func(ctx context.Context, tx pgx.Tx, to any, query string, args ...any) error {
			return tx.QueryRow(ctx, query, args...).Scan(to)
		},
	}
}

func throughSQL() statements[*sql.Tx] {
	return statements[*sql.Tx]{
		exec: func(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		},
		scan: func(ctx context.Context, tx *sql.Tx, to any, query string, args ...any) error {
			return tx.QueryRowContext(ctx, query, args...).Scan(to)
		},
	}
}

// producer writes to the ledger and to the outbox, in one transaction.
type producer[T any] struct {
	role
	box    *outbox.Outbox[T]
	via    statements[T]
	claims *os.File
}

func newProducer[T any](r role, db driver.Outbox[T], via statements[T]) (*producer[T], error) {
	box, err := outbox.New(testroles.Of[T](db), outbox.Config{})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(r.Folder, claimsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &producer[T]{role: r, box: box, via: via, claims: f}, nil
}

// run writes until the context ends.
func (p *producer[T]) run(ctx context.Context, worker int) {
	rng := rand.New(rand.NewPCG(p.Seed, uint64(roll(p.Seed, p.Name, p.Life, worker)*(1<<60))))
	for ctx.Err() == nil {
		long := 5*time.Millisecond + time.Duration(rng.Int64N(int64(40*time.Millisecond)))
		if err := p.transaction(context.WithoutCancel(ctx), rng); err != nil && !errors.Is(err, errRollback) {
			long = 300 * time.Millisecond // the server is unavailable
		}
		select {
		case <-ctx.Done():
		case <-time.After(long):
		}
	}
}

var errRollback = errors.New("this one is rolled back")

// transaction writes some events and records the outcome.
func (p *producer[T]) transaction(ctx context.Context, rng *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var ids []string
	slow := rng.Float64() < 0.03
	aggregates := p.aggregates(rng, slow)
	err := p.box.InTx(ctx, func(ctx context.Context, tx T) error {
		var evs []waybill.Event
		// sorted, so that there are no deadlocks
		for _, aggregate := range aggregates {
			for range 1 + rng.IntN(2) {
				ev, err := p.event(ctx, tx, rng, aggregate)
				if err != nil {
					return err
				}
				ids = append(ids, ev.ID.String())
				evs = append(evs, ev)
			}
		}
		if !slow {
			if err := p.box.Write(ctx, tx, evs...); err != nil {
				return err
			}
		} else {
			// The events get their seqs now, and become visible much later. The
			// order of an aggregate is guaranteed for transactions that end
			// within two seconds after writing.
			if _, err := p.box.WriteEach(ctx, tx, evs...); err != nil {
				return err
			}
			longest := 1500 * time.Millisecond
			if aggregates[len(aggregates)-1] == "" {
				longest = 4 * time.Second
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rng.Int64N(int64(longest)))):
			}
		}
		switch u := rng.Float64(); {
		case u < 0.002:
			suicide()
		case u < 0.004: // during the commit
			time.AfterFunc(time.Duration(rng.Int64N(int64(3*time.Millisecond))), suicide)
		case u < 0.15:
			return errRollback
		}
		return nil
	})
	switch {
	case err == nil:
		p.claim(ids, committed)
	case errors.Is(err, waybill.ErrUncertain):
		p.claim(ids, uncertain)
	default:
		p.claim(ids, rolledBack)
	}
	return err
}

// aggregates selects the aggregates of a transaction. Those of a slow one are
// separate, because it locks them.
func (p *producer[T]) aggregates(rng *rand.Rand, slow bool) []string {
	prefix, many := "a", 60
	if slow {
		prefix, many = "slow", 6
	}
	var out []string
	for range 1 + rng.IntN(2) {
		switch u := rng.Float64(); {
		case u < 0.25:
			out = append(out, "")
		default:
			out = append(out, prefix+strconv.Itoa(rng.IntN(many)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// event enters an event into the ledger and returns it for writing. The
// counter's row stays locked until the transaction ends, so that the numbers of
// an aggregate are in the order of its commits.
func (p *producer[T]) event(ctx context.Context, tx T, rng *rand.Rand, aggregate string) (waybill.Event, error) {
	ev := waybill.Event{ID: waybill.NewID(), Type: "Happened", Topic: destinations()[rng.IntN(4)]}
	number := rng.IntN(1 << 40)
	if aggregate != "" {
		ev.AggregateType, ev.AggregateID = "thing", aggregate
		err := p.via.scan(ctx, tx, &number, `INSERT INTO counter AS c (aggregate, n) VALUES ($1, 1)
			ON CONFLICT (aggregate) DO UPDATE SET n = c.n + 1 RETURNING n`, aggregate)
		if err != nil {
			return ev, err
		}
		ev.Topic = destinations()[int(roll(p.Seed, "topic", aggregate)*4)]
	} else if rng.Float64() < 0.2 {
		ev.Delay = time.Duration(1 + rng.Int64N(int64(2*time.Second)))
	}
	if rng.Float64() < 0.3 {
		ev.Priority = 1 + rng.IntN(3)
	}
	ev.Payload = []byte(strconv.Itoa(number))
	return ev, p.via.exec(ctx, tx, `INSERT INTO ledger (id, aggregate, number, due)
		VALUES ($1, $2, $3, CASE WHEN $4::bigint > 0 THEN clock_timestamp() + $4::bigint * interval '1 microsecond' END)`,
		ev.ID.UUID(), aggregate, number, ev.Delay.Microseconds())
}

// claim records the outcome that the producer saw.
func (p *producer[T]) claim(ids []string, outcome string) {
	line, err := json.Marshal(claim{ids, outcome})
	if err != nil {
		panic(err)
	}
	if _, err := p.claims.Write(append(append([]byte{'\n'}, line...), '\n')); err != nil {
		panic(err)
	}
}
