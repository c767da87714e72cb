package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// loads are the shapes of a transaction: the number of connections, and the
// number of events.
var loads = []struct{ conns, events int }{{1, 1}, {8, 1}, {1, 100}, {8, 100}, {1, 1000}, {8, 1000}}

// payload is 500 bytes of JSON.
var payload = []byte(`{"note":"` + strings.Repeat("x", 489) + `"}`)

// sample returns events of one transaction, all of one aggregate.
func sample(n, worker int) []waybill.Event {
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = waybill.Event{
			Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprintf("%d-%d", worker, i%10), Payload: payload,
		}
	}
	return evs
}

// prepareWrite defines the flags of write.
func prepareWrite(flags *flag.FlagSet) task {
	databases := flags.String("db", "postgres,mariadb,mysql,sqlite", "comma-separated databases")
	rounds := flags.Int("rounds", 5, "number of turns of every contender")
	turn := flags.Duration("turn", 500*time.Millisecond, "duration of a turn; longer is less noisy")
	only := flags.String("only", "", "part of the titles of the tables to run, such as \"1 conn, 1 ev\"")
	return task{
		databases: func() ([]string, error) { return parseDatabases(*databases) },
		run: func(ctx context.Context, out, progress io.Writer) error {
			names, err := parseDatabases(*databases)
			if err != nil {
				return err
			}
			return writes(ctx, names, *only, *rounds, *turn, out, progress)
		},
	}
}

// writes runs the races of all databases.
func writes(ctx context.Context, names []string, only string, rounds int, turn time.Duration, out, progress io.Writer) error {
	for _, name := range names {
		open := map[string]func(context.Context, int) (*target, error){
			"postgres": openPostgres, testserver.MariaDBName: openMariaDB, testserver.MySQLName: openMySQL, "sqlite": openSQLite,
		}[name]
		for _, load := range loads {
			title := fmt.Sprintf("%s, %d conn, %d ev/tx", name, load.conns, load.events)
			if !strings.Contains(title, only) {
				continue
			}
			t, err := open(ctx, load.conns)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(progress, "bench: %s\n", title)
			r := race{title: title, conns: load.conns, events: load.events, reset: t.reset, count: t.count}
			r.contender = []contender{
				{"business alone", t.alone}, {floorName, t.floor(load.events)}, {"waybill", t.waybill(load.events)},
			}
			err = r.run(ctx, rounds, turn, out)
			t.close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// target is a database with its contenders.
type target struct {
	reset   func(ctx context.Context) error
	count   func(ctx context.Context, c contender) (float64, error)
	alone   func(ctx context.Context, worker int) error
	floor   func(events int) func(ctx context.Context, worker int) error
	waybill func(events int) func(ctx context.Context, worker int) error
	close   func()
}

// countRuns is the number of transactions over which statements are counted.
const countRuns = 20

// counting returns a count function over a counter of statements; nil: they
// cannot be counted.
func counting(counter func(ctx context.Context) (int64, error)) func(ctx context.Context, c contender) (float64, error) {
	return func(ctx context.Context, c contender) (float64, error) {
		if counter == nil {
			return 0, nil
		}
		before, err := counter(ctx)
		if err != nil {
			return 0, err
		}
		for range countRuns {
			if err := c.transaction(ctx, 0); err != nil {
				return 0, err
			}
		}
		after, err := counter(ctx)
		return float64(after-before) / countRuns, err
	}
}
