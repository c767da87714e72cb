package pgstore

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// A relay in another process need not wait for its next poll: writers wake it with NOTIFY. Never inside the caller's transaction,
// where it would take a lock that all commits of the server share, and cost a quarter to a half of them; but on its own, behind
// the commit, and once for many of them. Nothing depends on it: through a pooler in transaction mode, with a driver that cannot
// listen, or when a wake-up is lost, polling finds the events.

const (
	defaultNotify = 10 * time.Millisecond
	// notifyTime bounds one wake-up, and the wait for a connection of the pool to send it.
	notifyTime = 2 * time.Second
	// listenPause is how long a listener waits before it connects again.
	listenPause = time.Second
	// listenPing is how often an idle listener sees whether its connection still lives.
	listenPing = time.Minute
)

// Nobody has to wait for a wake-up to be on disk: it would hold up the commits of the writers it is for.
const sendNotify = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`

// notifier wakes relays of other processes.
type notifier struct {
	send     func(ctx context.Context) error
	interval time.Duration

	mu      sync.Mutex
	running bool
	again   bool
}

// poke wakes them: at once, or, if that was less than an interval ago, when it is over. It does not block. The goroutine that it
// starts ends when nobody has poked for an interval.
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
		_ = n.send(ctx) // polling will do
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

// channel is the name under which the writers and relays of these tables meet.
func (c Config) channel() string {
	name := c.Prefix + "outbox"
	if c.Schema != "" {
		name = c.Schema + "." + name
	}
	return name[max(0, len(name)-63):]
}

// wakeOthers makes the hub wake relays of other processes.
func (c *core) wakeOthers() {
	if c.cfg.NotifyInterval < 0 {
		return
	}
	n := &notifier{interval: c.cfg.NotifyInterval, send: func(ctx context.Context) error {
		return c.db.exec(ctx, sendNotify, c.cfg.channel(), c.self.String())
	}}
	c.hub.OnRemoteCommit(n.poke)
}

// listen calls woken for every wake-up of others, until the connection fails or ctx ends.
func (c *core) listen(ctx context.Context, conn *pgx.Conn, woken func()) error {
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{c.cfg.channel()}.Sanitize()); err != nil {
		return err
	}
	woken() // whatever was said before this listened
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

// Watch implements [store.Watcher], on a connection of its own beside the pool.
func (s *Store) Watch(ctx context.Context, woken func()) {
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

// fewConnections is how many a database/sql pool must have at least before one is kept for listening.
const fewConnections = 4

// Watch implements [store.Watcher], if the driver is pgx; it keeps one connection. With other drivers the relay polls.
func (s *SQLStore) Watch(ctx context.Context, woken func()) {
	if most := s.sqldb.Stats().MaxOpenConnections; most > 0 && most < fewConnections {
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
				stop() // this driver does not listen
				return nil
			}
			_ = use(c.Conn())
			return driver.ErrBadConn // it has listened: nobody else may have it
		})
	})
}
