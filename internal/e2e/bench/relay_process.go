package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	oagudo "github.com/oagudo/outbox"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// relayFlags describe a relay in a process of its own, over tables that exist.
type relayFlags struct {
	db, at, stamps string
	peer           string
	block          bool
	history        bool
}

// prepareRelay defines the flags of relay.
func prepareRelay(flags *flag.FlagSet) task {
	var f relayFlags
	flags.StringVar(&f.db, "db", "postgres", "database: postgres, mariadb, mysql or sqlite")
	flags.StringVar(&f.at, "at", schema, "schema, database or file with the tables")
	flags.StringVar(&f.stamps, "stamps", "", "file with the shared times of events")
	flags.StringVar(&f.peer, "peer", "", "another library on PostgreSQL instead of a relay: "+watermillTuned.name+" or "+oagudoTuned.name)
	flags.BoolVar(&f.block, "block", false, "aggregates whose name begins with stuck fail for good, and stay blocked")
	flags.BoolVar(&f.history, "history", false, "keep delivered events")
	return task{
		databases: func() ([]string, error) { return oneDatabase(f.db) },
		run:       f.run,
	}
}

// run runs a relay until the standard input ends.
func (f *relayFlags) run(ctx context.Context, out, _ io.Writer) error {
	stamps, err := openStamps(f.stamps)
	if err != nil {
		return err
	}
	defer stamps.close()
	if f.peer != "" {
		return f.runPeer(ctx, stamps, out)
	}
	db, closing, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer closing()
	ctx, stop := untilInputEnds(ctx)
	defer stop()
	cfg := relay.Config{HistoryRetention: -1}
	if f.history {
		cfg.HistoryRetention = 0
	}
	if f.block {
		cfg.OnDead = relay.Block
	}
	r, err := relay.New(testroles.Of[any](db), relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		if strings.HasPrefix(d.AggregateID, stuckAggregate) {
			return waybill.Permanent(errStuck)
		}
		stamps.handle(d.Payload)
		return nil
	}), cfg)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	return r.Run(ctx)
}

// untilInputEnds returns a context that ends with the standard input.
func untilInputEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx, stop
}

// runPeer runs another library until the standard input ends.
func (f *relayFlags) runPeer(ctx context.Context, stamps *sharedStamps, out io.Writer) error {
	s, err := connectPostgres(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	s.schema = f.at
	tables, err := s.attach(ctx)
	if err != nil {
		return err
	}
	defer tables.close()
	ctx, stop := untilInputEnds(ctx)
	defer stop()
	var end func() error
	switch f.peer {
	case oagudoTuned.name:
		db := tables.sql()
		defer db.Close() //nolint:errcheck // nothing is written through it any more
		end = oagudoTuned.start(oagudo.NewDBContext(db, oagudo.SQLDialectPostgres), stamps.handle)
	case watermillTuned.name:
		sub, err := watermillTuned.subscriber(tables)
		if err != nil {
			return err
		}
		messages, err := sub.Subscribe(context.WithoutCancel(ctx), watermillTopic)
		if err != nil {
			return err
		}
		go consume(messages, stamps.handle)
		end = sub.Close
	default:
		return fmt.Errorf("unknown peer %q", f.peer)
	}
	fmt.Fprintln(out, "ready")
	<-ctx.Done()
	return end()
}

// open opens the relay's role of a store.
func (f *relayFlags) open(ctx context.Context) (db driver.Relay, closing func(), err error) {
	switch f.db {
	case "postgres":
		s, err := connectPostgres(ctx)
		if err != nil {
			return nil, nil, err
		}
		config := s.config.Copy()
		config.ConnConfig.RuntimeParams["search_path"] = f.at
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, nil, err
		}
		db, err := pgstore.New(pool, pgstore.Config{})
		if err != nil {
			return nil, nil, err
		}
		return db.Driver().Relay, func() { pool.Close(); s.close() }, nil
	case "sqlite":
		db, err := sqlitestore.Open(f.at, sqlitestore.Config{})
		if err != nil {
			return nil, nil, err
		}
		return db.Driver().Relay, func() { _ = db.Close() }, nil
	default:
		cfg, err := mysql.ParseDSN(os.Getenv(mysqlKinds[f.db].env))
		if err != nil {
			return nil, nil, err
		}
		cfg.DBName = f.at
		conns, err := sql.Open("mysql", cfg.FormatDSN())
		if err != nil {
			return nil, nil, err
		}
		db, err := mysqlstore.New(conns, mysqlstore.Config{})
		if err != nil {
			return nil, nil, err
		}
		return db.Driver().Relay, func() { _ = conns.Close() }, nil
	}
}

// relayProcess is a relay that runs in a process of its own.
type relayProcess struct {
	cmd   *exec.Cmd
	input io.Closer
}

// startRelayProcess starts a relay, and waits until it is ready.
func startRelayProcess(ctx context.Context, f relayFlags) (*relayProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "relay", "-db="+f.db, "-at="+f.at, "-stamps="+f.stamps, "-peer="+f.peer, //nolint:gosec // this program
		"-block="+strconv.FormatBool(f.block), "-history="+strconv.FormatBool(f.history))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var word string
	if _, err := fmt.Fscan(bufio.NewReader(output), &word); err != nil {
		_ = input.Close()
		return nil, errors.Join(fmt.Errorf("the relay's process did not start: %w", err), cmd.Wait())
	}
	return &relayProcess{cmd: cmd, input: input}, nil
}

// stop stops the relay as a signal would.
func (p *relayProcess) stop() error {
	_ = p.input.Close()
	return p.cmd.Wait()
}

// cpu returns the CPU time of the process.
func (p *relayProcess) cpu() time.Duration {
	s, err := readProcess(strconv.Itoa(p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return s.own
}

// memory returns the resident memory of the process and its peak, in bytes.
func (p *relayProcess) memory() (now, peak int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kb << 10
		case "VmHWM":
			peak = kb << 10
		}
	}
	return now, peak
}
