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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/e2e/process/child"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
)

// consumer configures a consuming process.
type consumer struct {
	Place place
	Seed  uint64
}

// consumed is the number of events.
var consumed = map[bool]int{true: 1000, false: 300}[testserver.Full()]

// consumers is the number of goroutines of a process, of which there are two.
const consumers = 50

// consumedEvent is the nth event, the same in every process.
func consumedEvent(n int) waybill.Event {
	var id waybill.ID
	id[0] = 1
	binary.BigEndian.PutUint64(id[8:], uint64(n)+1)
	return waybill.Event{ID: id, Type: "Happened", AggregateType: waybill.GlobalAggregate, Payload: []byte(fmt.Sprint(n))}
}

// openInbox opens the tables for database/sql.
func (p place) openInbox(ctx context.Context) (driver.Roles[*sql.Tx], *sql.DB, error) {
	var none driver.Roles[*sql.Tx]
	switch p.Database {
	case "postgres":
		pool, err := pgxpool.New(ctx, p.Source)
		if err != nil {
			return none, nil, err
		}
		db, err := pgstore.New(pool, pgstore.Config{Schema: p.Schema, Lanes: p.Lanes})
		if err != nil {
			return none, nil, err
		}
		handle, err := sql.Open("pgx", p.Source)
		if err != nil {
			return none, nil, err
		}
		return db.SQL(handle).Driver(), handle, nil
	case "mariadb", "mysql":
		handle, err := sql.Open("mysql", p.Source)
		if err != nil {
			return none, nil, err
		}
		db, err := mysqlstore.New(handle, mysqlstore.Config{Lanes: p.Lanes})
		if err != nil {
			return none, nil, err
		}
		return db.Driver(), handle, nil
	}
	return none, nil, fmt.Errorf("no database is called %q", p.Database)
}

// Statements of the business tables: an account to which every event adds 1,
// and a row for each time. These tables do not prevent that an event is applied
// twice.
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

// runConsumer is a consuming process: many goroutines consume random events, in
// every possible way, and handlers fail, exceed their lease, or kill the
// process.
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
	g := in.MustGroup("G", inbox.Options{
		Lease: 300 * time.Millisecond, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond, MaxAttempts: 1_000_000,
	})
	var all sync.WaitGroup
	open := newUnapplied()
	for i := range consumers {
		rnd := rand.New(rand.NewPCG(c.Seed, uint64(i)))
		all.Go(func() {
			for {
				consumeSome(ctx, g, c.Place, rnd, open)
			}
		})
	}
	all.Wait()
	return nil
}

// unapplied holds the events that this process does not know to be applied.
// Most draws are from these: otherwise the last of a thousand events would be
// drawn once in a thousand draws, and the duration would depend on the
// machine's speed and not on the inbox.
type unapplied struct {
	mu   sync.Mutex
	list []int
}

func newUnapplied() *unapplied {
	u := &unapplied{}
	for n := range consumed {
		u.list = append(u.list, n)
	}
	return u
}

// draw returns an event; one in four is drawn from all events, also from
// applied ones.
func (u *unapplied) draw(rnd *rand.Rand) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.list) == 0 || rnd.IntN(4) == 0 {
		return rnd.IntN(consumed)
	}
	return u.list[rnd.IntN(len(u.list))]
}

// note removes an event if its record says that it is applied.
func (u *unapplied) note(n int, err error) {
	if err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.list, n); i >= 0 {
		u.list = slices.Delete(u.list, i, i+1)
	}
}

var errConsumer = errors.New("no luck")

// consumeSome consumes one event, or a few.
func consumeSome(ctx context.Context, g *inbox.Group[*sql.Tx], p place, rnd *rand.Rand, open *unapplied) {
	// The handler's fate is drawn beforehand, because it may run on another
	// goroutine.
	fate := func() error {
		switch u := rnd.Float64(); {
		case u < 0.05: // a crash, with all events in flight
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
	n := open.draw(rnd)
	ev := consumedEvent(n)
	var err error
	switch rnd.IntN(4) {
	case 0:
		_, err = g.Consume(ctx, ev, apply)
	case 1:
		_, err = g.Consume(waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: ev, Attempt: 2}), ev, apply)
	case 2:
		_, err = g.ConsumeLeased(ctx, ev, func(ctx context.Context, l *inbox.Lease[*sql.Tx]) error {
			if err := fate(); err != nil {
				return err
			}
			return l.Finish(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error { return apply(ctx, tx, ev) })
		})
	case 3:
		numbers, evs := []int{n}, []waybill.Event{ev}
		for range 4 {
			numbers = append(numbers, open.draw(rnd))
			evs = append(evs, consumedEvent(numbers[len(numbers)-1]))
		}
		for i, err := range g.ConsumeBatch(ctx, evs, apply) {
			open.note(numbers[i], err)
		}
		return
	}
	open.note(n, err)
}

// TestConsumersThatDie: two processes with a hundred goroutines race over
// hundreds of events (a thousand in make test-stores-full), with leases that
// expire, crashes in one of twenty handlers, and processes that are stopped and
// resumed. The sums of the business tables show that every effect occurred
// once.
func TestConsumersThatDie(t *testing.T) {
	for database, make := range map[string]func(*testing.T) place{"postgres": postgresPlace, "mariadb": mariadbPlace, "mysql": mysqlPlace} {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
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

// whereabouts describes each event that was not applied: its record, if any,
// and whether it had its effect.
func whereabouts(t *testing.T, db *sql.DB, prefix string) string {
	t.Helper()
	effects := make(map[int]int)
	lines := make(map[int]string)
	err := eachRow(t.Context(), db, `SELECT event FROM `+prefix+`effect`, func(scan func(...any) error) error {
		var n int
		err := scan(&n)
		effects[n]++
		return err
	})
	if err != nil {
		return err.Error()
	}
	records := make(map[string]string)
	err = eachRow(t.Context(), db, `SELECT event_id, status, attempts, fence, lease_until, next_retry_at, last_error FROM `+prefix+`waybill_inbox`,
		func(scan func(...any) error) error {
			var id []byte
			var status, attempts, fence int
			var lease, next, last sql.NullString
			err := scan(&id, &status, &attempts, &fence, &lease, &next, &last)
			records[recordKey(id)] = fmt.Sprintf("status %d, %d attempts, fence %d, lease until %q, due at %q, error %q",
				status, attempts, fence, lease.String, next.String, last.String)
			return err
		})
	if err != nil {
		return err.Error()
	}
	var missing []int
	for n := range consumed {
		record, ok := records[recordKey([]byte(consumedEvent(n).ID.UUID()))]
		switch {
		case !ok:
			lines[n] = "no record"
		case !strings.HasPrefix(record, "status 1,"):
			lines[n] = record
		default:
			continue
		}
		missing = append(missing, n)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d events:", len(missing))
	for _, n := range missing {
		fmt.Fprintf(&text, "\nevent %d: %s; %d effects", n, lines[n], effects[n])
	}
	return text.String()
}

// recordKey is an event's id as text: servers return it as 16 bytes, or as text
// of either case.
func recordKey(id []byte) string {
	if len(id) == 16 {
		return fmt.Sprintf("%x", id)
	}
	return strings.ToLower(strings.ReplaceAll(string(id), "-", ""))
}

func eachRow(ctx context.Context, db *sql.DB, query string, take func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := take(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
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
	succeeded, before := 0, 0
	const stuck = 4 * patience
	for deadline := time.Now().Add(stuck); succeeded < consumed; {
		// A busy machine is slow, and each applied event is progress. If no
		// event is applied for long, events are stuck or lost, which is a
		// failure; attempts alone are no progress, because an event that can
		// never be applied is retried forever.
		if succeeded > before {
			before, deadline = succeeded, time.Now().Add(stuck)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events were applied, with %d crashes and %d stops, and no more are: %s", succeeded, consumed, crashes, stops, whereabouts(t, db, prefix))
		}
		i := rnd.IntN(2)
		select {
		case <-children[i].Ended():
			crashes++
			children[i] = start()
		case <-time.After(30 * time.Millisecond):
			// stopped during its work, for longer than a lease
			if rnd.IntN(4) == 0 {
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
	if text := whereabouts(t, db, prefix); text != "0 events:" {
		t.Errorf("all events were applied, and these are elsewhere: %s", text)
	}
	if n := count(`SELECT count(*) FROM ` + prefix + `effect`); n != consumed {
		t.Errorf("%d effects of %d events", n, consumed)
	}
	if n := count(`SELECT count(DISTINCT event) FROM ` + prefix + `effect`); n != consumed {
		t.Errorf("effects of %d events, want %d", n, consumed)
	}
	if n := count(`SELECT count(*) FROM ` + prefix + `account WHERE total = ` + fmt.Sprint(consumed/100)); n != 100 {
		t.Errorf("%d of 100 accounts have what they should", n)
	}
	if crashes+stops < consumed/10 {
		t.Errorf("only %d crashes and %d stops: not what this test is for", crashes, stops)
	}
}
