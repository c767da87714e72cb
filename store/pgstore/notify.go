package pgstore

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Writers wake relays in other processes with NOTIFY, so that those relays need
// not wait for the next poll. A wake-up is never sent inside the caller's
// transaction, where it would take a lock that all commits of the server share
// and would cost a quarter to a half of the commit rate. It is sent separately,
// after the commit, and once for many commits. Correctness does not depend on
// wake-ups: through a pooler in transaction mode, with a driver that cannot
// listen, or when a wake-up is lost, polling finds the events.

const (
	defaultNotify = 10 * time.Millisecond
	// notifyTime bounds one wake-up, including the wait for a connection of the
	// pool.
	notifyTime = 2 * time.Second
	// listenPause is the delay before a listener reconnects.
	listenPause = time.Second
	// listenPing is the interval at which an idle listener checks its
	// connection.
	listenPing = time.Minute
)

// sendNotify does not wait for the disk: a synchronous commit would delay the
// commits of the writers.
const sendNotify = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`

// notifier wakes relays in other processes.
type notifier struct {
	send     func(ctx context.Context) error
	interval time.Duration

	mu      sync.Mutex
	running bool
	again   bool
}

// poke wakes relays in other processes: immediately, or at the end of the
// interval if the last wake-up was less than an interval ago. It does not
// block. The goroutine that poke starts ends after an interval without a call
// of poke.
func (n *notifier) poke() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running {
		n.again = true
		return
	}
	n.running = true
	go n.run()
}

func (n *notifier) run() {
	pause := time.NewTimer(0)
	<-pause.C
	for {
		ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
		_ = n.send(ctx) // on failure, relays poll
		cancel()
		pause.Reset(n.interval)
		<-pause.C
		n.mu.Lock()
		if !n.again {
			n.running = false
			n.mu.Unlock()
			return
		}
		n.again = false
		n.mu.Unlock()
	}
}

// channel is the NOTIFY channel of the writers and relays of these tables.
func (c Config) channel() string {
	name := c.Prefix + "outbox"
	if c.Schema != "" {
		name = c.Schema + "." + name
	}
	return name[max(0, len(name)-63):]
}

// wakeOthers makes the hub wake relays in other processes.
func (c *core) wakeOthers() {
	if c.cfg.NotifyInterval < 0 {
		return
	}
	n := &notifier{interval: c.cfg.NotifyInterval, send: func(ctx context.Context) error {
		return c.db.exec(ctx, sendNotify, c.cfg.channel(), c.self.String())
	}}
	c.hub.OnRemoteCommit(n.poke)
}

// listen calls woken for every wake-up from another process, until the
// connection fails or ctx ends.
func (c *core) listen(ctx context.Context, conn *pgx.Conn, woken func()) error {
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{c.cfg.channel()}.Sanitize()); err != nil {
		return err
	}
	woken() // covers wake-ups from before LISTEN
	for {
		wait, cancel := context.WithTimeout(ctx, listenPing)
		note, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			if note.Payload != c.self.String() {
				woken()
			}
		case ctx.Err() != nil || wait.Err() == nil:
			return err
		default:
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		}
	}
}

// keepListening connects and listens until ctx ends.
func (c *core) keepListening(ctx context.Context, woken func(), connect func(ctx context.Context, use func(*pgx.Conn) error) error) {
	if c.cfg.NotifyInterval < 0 {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		_ = connect(ctx, func(conn *pgx.Conn) error { return c.listen(ctx, conn, woken) })
		pause.Reset(listenPause)
	}
}

// Watch implements [driver.Watcher], on a separate connection beside the pool.
func (s *pgxBackend) Watch(ctx context.Context, woken func()) {
	s.keepListening(ctx, woken, func(ctx context.Context, use func(*pgx.Conn) error) error {
		cfg := s.pool.Config()
		if cfg.BeforeConnect != nil {
			if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
				return err
			}
		}
		if s.cfg.ListenURL != "" {
			direct, err := pgx.ParseConfig(s.cfg.ListenURL)
			if err != nil {
				return err
			}
			cfg.ConnConfig = direct
		}
		conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
		if err != nil {
			return err
		}
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTime)
			defer cancel()
			_ = conn.Close(end)
		}()
		return use(conn)
	})
}

// fewConnections is the minimum size of a database/sql pool for keeping one
// connection for listening.
const fewConnections = 4

// Watch implements [driver.Watcher] if the driver is pgx. It keeps one
// connection. With other drivers the relay polls.
func (s *sqlBackend) Watch(ctx context.Context, woken func()) {
	if limit := s.sqldb.Stats().MaxOpenConnections; limit > 0 && limit < fewConnections {
		return
	}
	listening, stop := context.WithCancel(ctx)
	defer stop()
	s.keepListening(listening, woken, func(ctx context.Context, use func(*pgx.Conn) error) error {
		conn, err := s.sqldb.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		return conn.Raw(func(inner any) error {
			c, ok := inner.(*stdlib.Conn)
			if !ok {
				stop() // this driver cannot listen
				return nil
			}
			_ = use(c.Conn())
			// A listening connection must not return to the pool.
			return driver.ErrBadConn
		})
	})
}
