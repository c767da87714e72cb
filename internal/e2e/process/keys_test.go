//go:build linux || darwin

package process_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/internal/e2e/process/child"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// keyed configures a process that runs requests under keys.
type keyed struct {
	Place place
	// Key is the key to run; if empty, the process runs one key after the
	// other.
	Key string
	// Die is the point at which the process is killed; see the calls of die.
	Die string
	// Services is the address of the outside services, if the request calls
	// some.
	Services string
}

// openKeys opens the tables for database/sql.
func (p place) openKeys(ctx context.Context) (driver.Roles[*sql.Tx], error) {
	if p.Database == "sqlite" {
		db, err := sqlitestore.Open(p.Source, sqlitestore.Config{})
		if err != nil {
			return driver.Roles[*sql.Tx]{}, err
		}
		return db.Driver(), nil
	}
	db, _, err := p.openInbox(ctx)
	return db, err
}

// die ends the process if this is the given point.
func (c keyed) die(where string) {
	if c.Die == where {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// mortal is a key role whose process can die before and after a commit.
type mortal struct {
	driver.Keys[*sql.Tx]
	keyed keyed
}

func (m mortal) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	s, err := m.Keys.Begin(ctx, opts)
	return mortalSession{s, m.keyed}, err
}

type mortalSession struct {
	driver.Session[*sql.Tx]
	keyed keyed
}

func (s mortalSession) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	s.keyed.die("before the commit")
	end, err := s.Session.Commit(ctx, accepted, check)
	s.keyed.die("after the commit")
	return end, err
}

// keyUser runs requests.
type keyUser struct {
	keyed
	keys *idempotency.Keys[*sql.Tx]
	box  *outbox.Outbox[*sql.Tx]
}

// keyLease is long enough for a slow machine, and short enough to wait for.
const keyLease = time.Second

func (c keyed) open(ctx context.Context) (*keyUser, error) {
	db, err := c.Place.openKeys(ctx)
	if err != nil {
		return nil, err
	}
	u := &keyUser{keyed: c}
	if u.keys, err = idempotency.New(driver.Roles[*sql.Tx]{Keys: mortal{db.Keys, c}}, idempotency.Config{Lease: keyLease}); err != nil {
		return nil, err
	}
	u.box, err = outbox.New(db, outbox.Config{})
	return u, err
}

func keyRequest(key string) idempotency.Request {
	hash, err := idempotency.HashJSON(key)
	if err != nil {
		panic(err)
	}
	return idempotency.Request{Operation: "BUY", Key: key, Hash: hash, WaitMax: time.Minute}
}

// purchase is an answer.
type purchase struct{ Bought, Charge, Parcel string }

// business inserts a row, and writes an event.
func (u *keyUser) business(ctx context.Context, tx *sql.Tx, key string) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO `+u.Place.purchases()+` (name) VALUES ('`+key+`')`); err != nil {
		return err
	}
	ev := waybill.NewEvent("Bought", 0)
	ev.AggregateType, ev.AggregateID = "purchase", key
	return u.box.Write(ctx, tx, ev)
}

func (p place) purchases() string {
	if p.Schema != "" {
		return p.Schema + ".purchase"
	}
	return "purchase"
}

// buy runs a request in one transaction.
func (u *keyUser) buy(ctx context.Context, key string) (idempotency.Result[purchase], error) {
	u.die("before the transaction")
	return idempotency.DoTx(ctx, u.keys, keyRequest(key), func(ctx context.Context, tx *sql.Tx) (purchase, error) {
		u.die("inside the transaction")
		err := u.business(ctx, tx, key)
		u.die("after the writes")
		return purchase{Bought: key}, err
	})
}

// journey runs a request in three phases, two of them outside.
func (u *keyUser) journey(ctx context.Context, key string) (idempotency.Result[purchase], error) {
	return idempotency.Do(ctx, u.keys, keyRequest(key), func(ctx context.Context) (p purchase, err error) {
		p.Bought, err = idempotency.Phase(ctx, u.keys, "book", func(ctx context.Context, tx *sql.Tx) (string, error) {
			err := u.business(ctx, tx, key)
			u.die("in the first phase")
			return key, err
		})
		if err != nil {
			return p, err
		}
		u.die("after the first phase")
		if p.Charge, err = u.call(ctx, "charge"); err != nil {
			return p, err
		}
		u.die("after the second phase")
		if p.Parcel, err = u.call(ctx, "ship"); err != nil {
			return p, err
		}
		u.die("after the third phase")
		return p, nil
	})
}

// call calls an outside service.
func (u *keyUser) call(ctx context.Context, name string) (string, error) {
	return idempotency.Call(ctx, u.keys, name, func(ctx context.Context, key string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.Services+"/"+name, strings.NewReader(key))
		if err != nil {
			return "", err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close() //nolint:errcheck // it is read
		body, err := io.ReadAll(res.Body)
		u.die("in " + name)
		return string(body), err
	})
}

// runKeyed is a process that runs requests under keys.
func runKeyed(text string) error {
	var c keyed
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx := context.Background()
	u, err := c.open(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.Services != "":
		_, err = u.journey(ctx, c.Key)
	case c.Key != "":
		_, err = u.buy(ctx, c.Key)
	default:
		for n := 0; err == nil; n++ {
			_, err = u.buy(ctx, fmt.Sprintf("%d-%d", os.Getpid(), n))
		}
	}
	return err
}

func (c keyed) start(t *testing.T) *child.Process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(keyedVariable + "=" + string(text))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// dies starts a process and waits for its death.
func (c keyed) dies(t *testing.T) {
	t.Helper()
	p := c.start(t)
	select {
	case <-p.Ended():
	case <-time.After(time.Minute):
		t.Fatalf("the process that was to die %s is alive", c.Die)
	}
	var status syscall.WaitStatus
	if err := p.Wait(); err != nil {
		var exit interface{ Sys() any }
		if errors.As(err, &exit) {
			status, _ = exit.Sys().(syscall.WaitStatus)
		}
	}
	if !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process that was to die %s ended otherwise: %v", c.Die, p.Wait())
	}
}

// keyBed is the tables of one test, with queries.
type keyBed struct {
	*testing.T
	*keyUser
	db     *sql.DB
	tables *tables
}

// withKeys runs a test on every database; with parallel, concurrently, because
// it mostly waits.
func withKeys(t *testing.T, parallel bool, test func(b *keyBed)) {
	for database, make := range map[string]func(*testing.T) place{"postgres": postgresPlace, "mariadb": mariadbPlace, "mysql": mysqlPlace, "sqlite": sqlitePlace} {
		t.Run(database, func(t *testing.T) {
			if parallel {
				t.Parallel()
			}
			p := make(t)
			tables, err := p.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tables.close() })
			if _, err := tables.db.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			u, err := keyed{Place: p}.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b := &keyBed{T: t, keyUser: u, db: p.handle(t), tables: tables}
			if _, err := b.db.ExecContext(t.Context(), `CREATE TABLE `+p.purchases()+` (name VARCHAR(100) NOT NULL)`); err != nil {
				t.Fatal(err)
			}
			test(b)
		})
	}
}

// rows counts the rows of a request, or of all.
func (b *keyBed) rows(key string) (n int64) {
	b.Helper()
	query := `SELECT count(*) FROM ` + b.Place.purchases()
	if key != "" {
		query += ` WHERE name = '` + key + `'`
	}
	if err := b.db.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// bought counts the rows of each request.
func (b *keyBed) bought() map[string]int64 {
	b.Helper()
	rows, err := b.db.QueryContext(b.Context(), `SELECT name, count(*) FROM `+b.Place.purchases()+` GROUP BY name`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int64{}
	for rows.Next() {
		var key string
		var n int64
		if err := rows.Scan(&key, &n); err != nil {
			b.Fatal(err)
		}
		out[key] = n
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return out
}

// events counts the events of a request, or of all.
func (b *keyBed) events(key string) int64 {
	b.Helper()
	f := store.Filter{}
	if key != "" {
		f = store.Filter{AggregateType: "purchase", AggregateID: key}
	}
	n, err := b.tables.db.Count(context.Background(), store.Ready, f)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// want checks that a request has left this many rows, events, and records with
// an answer.
func (b *keyBed) want(when, key string, n int64) {
	b.Helper()
	rec, there, err := b.keys.Find(context.Background(), "", "BUY", key)
	if err != nil {
		b.Fatal(err)
	}
	if rows, events := b.rows(key), b.events(key); rows != n || events != n || there != (n > 0) {
		b.Errorf("%s: %d rows, %d events, and a record: %v; want %d of each", when, rows, events, there, n)
	}
	if there && (rec.State != store.KeySucceeded || len(rec.Result) == 0) {
		b.Errorf("%s: the record is %+v", when, rec)
	}
}

// TestKilledInOneTransaction: a process that dies in DoTx leaves either nothing
// or everything: key, row, event and answer. A repeated request completes the
// former and gets the latter.
func TestKilledInOneTransaction(t *testing.T) {
	withKeys(t, false, func(b *keyBed) {
		for i, where := range []string{
			"before the transaction", "inside the transaction", "after the writes", "before the commit", "after the commit",
		} {
			key := fmt.Sprintf("k%d", i)
			keyed{Place: b.Place, Key: key, Die: where}.dies(b.T)
			committed := where == "after the commit"
			b.want("died "+where, key, map[bool]int64{true: 1, false: 0}[committed])
			res, err := b.buy(b.Context(), key)
			if err != nil || res.Value.Bought != key || res.Replayed != committed {
				b.Errorf("died %s: the repeat: %+v, %v", where, res, err)
			}
			b.want("died "+where+", and repeated", key, 1)
		}
	})
}

// TestKilledAtAnyTime is the same for processes that are killed from outside,
// at any time.
func TestKilledAtAnyTime(t *testing.T) {
	withKeys(t, false, func(b *keyBed) {
		for range 4 {
			before := b.rows("")
			p := keyed{Place: b.Place}.start(b.T)
			for deadline := time.Now().Add(time.Minute); b.rows("") == before; {
				if time.Now().After(deadline) || !p.Alive() {
					b.Fatal("nothing is bought")
				}
				<-time.After(2 * time.Millisecond)
			}
			// killed during its work
			<-time.After(rand.N(30 * time.Millisecond))
			p.Kill()
		}
		// The server may still be executing the last process's statements: a
		// transaction may commit between two of these reads.
		var bought map[string]int64
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
			events := b.events("")
			if bought = b.bought(); int64(len(bought)) == events && b.events("") == events {
				break
			}
			<-time.After(5 * time.Millisecond)
		}
		for _, key := range slices.Sorted(maps.Keys(bought)) {
			rec, there, err := b.keys.Find(b.Context(), "", "BUY", key)
			if err != nil || !there || rec.State != store.KeySucceeded || bought[key] != 1 {
				b.Errorf("%s has %d rows and the record %+v, %v", key, bought[key], rec, err)
			}
		}
		if n := b.events(""); n != int64(len(bought)) {
			b.Errorf("%d events of %d requests", n, len(bought))
		}
		b.Logf("%d requests", len(bought))
	})
}

// services are two outside services that record their calls.
type services struct {
	mu    sync.Mutex
	calls map[string][]string // service → the keys of its calls
}

func (s *services) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	name := strings.Trim(r.URL.Path, "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[name] = append(s.calls[name], string(key))
	_, _ = fmt.Fprintf(w, "%s of %s", name, key)
}

func (s *services) seen(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls[name])
}

// TestKilledBetweenPhases: a request of three phases is killed in and after
// each of them. A repeated request continues after the last committed phase,
// and each outside service sees one key, however often it is called.
func TestKilledBetweenPhases(t *testing.T) {
	withKeys(t, true, func(b *keyBed) {
		outside := &services{calls: map[string][]string{}}
		server := httptest.NewServer(outside)
		defer server.Close()
		const key = "journey"
		var charges, parcels int
		for _, where := range []string{
			"in the first phase", "after the first phase", "in charge", "after the second phase", "in ship", "after the third phase",
		} {
			keyed{Place: b.Place, Key: key, Die: where, Services: server.URL}.dies(b.T)
			booked := map[bool]int64{true: 1, false: 0}[where != "in the first phase"]
			if rows, events := b.rows(key), b.events(key); rows != booked || events != booked {
				b.Errorf("died %s: %d rows and %d events, want %d", where, rows, events, booked)
			}
			switch where {
			case "after the second phase":
				charges = len(outside.seen("charge"))
			case "after the third phase":
				parcels = len(outside.seen("ship"))
			}
		}
		b.Services = server.URL
		res, err := b.journey(b.Context(), key)
		if err != nil || res.Replayed {
			b.Fatalf("the last attempt: %+v, %v", res, err)
		}
		for name, calls := range map[string]int{"charge": charges, "ship": parcels} {
			seen := outside.seen(name)
			if len(seen) < 2 || len(slices.Compact(slices.Clone(seen))) != 1 {
				b.Errorf("%s saw the keys %q", name, seen)
			}
			if len(seen) != calls {
				b.Errorf("%s was called %d times until its phase was committed, and %d in all", name, calls, len(seen))
			}
		}
		want := purchase{Bought: key, Charge: "charge of " + outside.seen("charge")[0], Parcel: "ship of " + outside.seen("ship")[0]}
		if res.Value != want {
			b.Errorf("the answer is %+v, want %+v", res.Value, want)
		}
		b.want("at the end", key, 1)
		if again, err := b.journey(b.Context(), key); err != nil || !again.Replayed || again.Value != want {
			b.Errorf("a repeat: %+v, %v", again, err)
		}
	})
}
