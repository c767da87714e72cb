//go:build linux || darwin

package process_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/test/process/child"
)

// consumer is what a process that consumes is told.
type consumer struct {
	Place place
	Seed  uint64
}

const (
	consumed  = 1000 // events
	consumers = 50   // goroutines of a process, of which there are two
)

// consumedEvent is the nth event, in every process the same.
func consumedEvent(n int) waybill.Event {
	var id waybill.ID
	id[0] = 1
	binary.BigEndian.PutUint64(id[8:], uint64(n)+1)
	return waybill.Event{ID: id, Type: "Happened", AggregateType: waybill.GlobalAggregate, Payload: []byte(fmt.Sprint(n))}
}

// openInbox opens the tables for database/sql.
func (p place) openInbox(ctx context.Context) (store.Inbox[*sql.Tx], *sql.DB, error) {
	switch p.Database {
	case "postgres":
		pool, err := pgxpool.New(ctx, p.Source)
		if err != nil {
			return nil, nil, err
		}
		db, err := pgstore.New(pool, pgstore.Config{Schema: p.Schema, Lanes: p.Lanes})
		if err != nil {
			return nil, nil, err
		}
		handle, err := sql.Open("pgx", p.Source)
		if err != nil {
			return nil, nil, err
		}
		return db.SQL(handle), handle, nil
	case "mariadb":
		handle, err := sql.Open("mysql", p.Source)
		if err != nil {
			return nil, nil, err
		}
		db, err := mysqlstore.New(handle, mysqlstore.Config{Lanes: p.Lanes})
		return db, handle, err
	}
	return nil, nil, fmt.Errorf("no database is called %q", p.Database)
}

// Statements of the business: an account that every event adds 1 to, and a row for each time. Nothing in these tables keeps an event from being
// applied twice.
func (p place) applyEvent(ctx context.Context, tx *sql.Tx, n int) error {
	account, effect := "account", "effect"
	if p.Schema != "" {
		account, effect = p.Schema+".account", p.Schema+".effect"
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %s (event) VALUES (%d)`, effect, n)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf(`UPDATE %s SET total = total + 1 WHERE id = %d`, account, n%100))
	return err
}

// runConsumer is a process that consumes: many goroutines take events at random, in every way there is, and handlers fail, are too slow for
// their lease, or kill the process.
func runConsumer(text string) error {
	var c consumer
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx := context.Background()
	db, handle, err := c.Place.openInbox(ctx)
	if err != nil {
		return err
	}
	handle.SetMaxOpenConns(20)
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		return err
	}
	g := in.Group("G", inbox.Options{
		LockTTL: 300 * time.Millisecond, BaseBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, MaxRetry: 1_000_000,
	})
	var all sync.WaitGroup
	for i := range consumers {
		rnd := rand.New(rand.NewPCG(c.Seed, uint64(i)))
		all.Go(func() {
			for {
				consumeSome(ctx, g, c.Place, rnd)
			}
		})
	}
	all.Wait()
	return nil
}

var errConsumer = errors.New("no luck")

// consumeSome takes one event, or a few.
func consumeSome(ctx context.Context, g *inbox.Group[*sql.Tx], p place, rnd *rand.Rand) {
	// What a handler does besides is drawn beforehand: it may run on another goroutine's time.
	fate := func() error {
		switch u := rnd.Float64(); {
		case u < 0.05: // a crash, with everything that this process is at
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case u < 0.08:
			<-time.After(400 * time.Millisecond) // longer than the lease
		case u < 0.2:
			return errConsumer
		}
		return nil
	}
	apply := func(ctx context.Context, tx *sql.Tx, ev waybill.Event) error {
		var n int
		if _, err := fmt.Sscan(string(ev.Payload), &n); err != nil {
			return err
		}
		if err := p.applyEvent(ctx, tx, n); err != nil {
			return err
		}
		return fate()
	}
	ev := consumedEvent(rnd.IntN(consumed))
	switch rnd.IntN(4) {
	case 0:
		_, _ = g.Consume(ctx, ev, apply)
	case 1:
		_, _ = g.Consume(waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: ev, Attempt: 2}), ev, apply)
	case 2:
		_, _ = g.ConsumeLeased(ctx, ev, func(ctx context.Context, l *inbox.Lease[*sql.Tx]) error {
			if err := fate(); err != nil {
				return err
			}
			return l.Finish(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error { return apply(ctx, tx, ev) })
		})
	case 3:
		evs := []waybill.Event{ev}
		for range 4 {
			evs = append(evs, consumedEvent(rnd.IntN(consumed)))
		}
		g.ConsumeBatch(ctx, evs, apply)
	}
}

// TestConsumersThatDie: two processes with a hundred goroutines race over a thousand events, with leases that run out, crashes in one of twenty
// handlers, and processes that are stopped and resumed. Every effect is there, once: the business tables' sums say so.
func TestConsumersThatDie(t *testing.T) {
	for database, make := range map[string]func(*testing.T) place{"postgres": postgresPlace, "mariadb": mariadbPlace} {
		t.Run(database, func(t *testing.T) {
			p := make(t)
			tables, err := p.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tables.db.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tables.close(); err != nil {
				t.Fatal(err)
			}
			raceConsumers(t, p)
		})
	}
}

func raceConsumers(t *testing.T, p place) {
	db := p.handle(t)
	prefix := ""
	if p.Schema != "" {
		prefix = p.Schema + "."
	}
	exec := func(statement string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec(`CREATE TABLE ` + prefix + `account (id INT PRIMARY KEY, total INT NOT NULL)`)
	exec(`CREATE TABLE ` + prefix + `effect (event INT NOT NULL)`)
	for i := range 100 {
		exec(fmt.Sprintf(`INSERT INTO %saccount (id, total) VALUES (%d, 0)`, prefix, i))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	start := func() *child.Process {
		text, err := json.Marshal(consumer{Place: p, Seed: rnd.Uint64()})
		if err != nil {
			t.Fatal(err)
		}
		c, err := child.Start(consumerVariable + "=" + string(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	children := [2]*child.Process{start(), start()}
	defer func() {
		for _, c := range children {
			c.Kill()
		}
	}()
	crashes, stops := 0, 0
	succeeded := 0
	for deadline := time.Now().Add(4 * time.Minute); succeeded < consumed; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events were applied, with %d crashes and %d stops", succeeded, consumed, crashes, stops)
		}
		i := rnd.IntN(2)
		select {
		case <-children[i].Ended():
			crashes++
			children[i] = start()
		case <-time.After(30 * time.Millisecond):
			if rnd.IntN(4) == 0 { // stopped in the middle of something, for longer than a lease
				stops++
				_ = children[i].Signal(syscall.SIGSTOP)
				<-time.After(350 * time.Millisecond)
				_ = children[i].Signal(syscall.SIGCONT)
			}
		}
		succeeded = count(`SELECT count(*) FROM ` + prefix + `waybill_inbox WHERE status = 1`)
	}
	for _, c := range children {
		c.Kill()
	}
	t.Logf("%d events, %d crashes, %d stops", consumed, crashes, stops)
	if n := count(`SELECT count(*) FROM ` + prefix + `effect`); n != consumed {
		t.Errorf("%d effects of %d events", n, consumed)
	}
	if n := count(`SELECT count(DISTINCT event) FROM ` + prefix + `effect`); n != consumed {
		t.Errorf("effects of %d events, want %d", n, consumed)
	}
	if n := count(`SELECT count(*) FROM ` + prefix + `account WHERE total = 10`); n != 100 {
		t.Errorf("%d of 100 accounts have what they should", n)
	}
	if crashes+stops < consumed/10 {
		t.Errorf("only %d crashes and %d stops: not what this test is for", crashes, stops)
	}
}
