package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func keyClaim(key string) driver.KeyClaim {
	return driver.KeyClaim{
		KeyID: store.KeyID{Tenant: "t", Operation: "pay", Key: key}, Hash: "v1:hash", Owner: waybill.NewID(), Lease: time.Hour,
	}
}

// TestKeyLocked: a record that another transaction has locked is busy. The
// store does not wait for it, even if that transaction does not hold the key's
// own lock.
func TestKeyLocked(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "10s" })
	s, schema := openStore(t, pool)
	ctx := t.Context()
	c := keyClaim("locked")
	rec, ok, err := s.Driver().Keys.ClaimKey(ctx, c)
	if err != nil || !ok {
		t.Fatalf("ClaimKey: %v, %v", ok, err)
	}
	a := driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}
	if ok, err := s.Driver().Keys.EndKey(ctx, a, driver.KeyEnd{State: store.KeyFailed, Answer: driver.KeyAnswer{Retention: time.Hour}}); err != nil || !ok {
		t.Fatalf("EndKey: %v, %v", ok, err)
	}
	holder, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(ctx) //nolint:errcheck // it is only to let go
	if _, err := holder.Exec(ctx, `SELECT FROM "`+schema+`".waybill_idempotency FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	next := keyClaim("locked")
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		got, err := s.Driver().Keys.TakeKey(ctx, tx, next)
		if err == nil && !got.Busy {
			t.Errorf("a key whose record is locked: %+v", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestKeysAreDurable: decisions about a key outside the caller's transaction
// are durable, even in a session with synchronous_commit off.
func TestKeysAreDurable(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	s, schema := openStore(t, pool)
	ctx := t.Context()
	for _, query := range []string{
		`CREATE TABLE "` + schema + `".seen (mode text)`,
		`CREATE FUNCTION "` + schema + `".note() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO "` + schema + `".seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$`,
		`CREATE TRIGGER note AFTER INSERT OR UPDATE ON "` + schema + `".waybill_idempotency
			FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
	} {
		if _, err := pool.Exec(ctx, query); err != nil {
			t.Fatal(err)
		}
	}
	var a driver.KeyAttempt
	claim := func() (bool, error) {
		c := keyClaim("durable")
		rec, ok, err := s.Driver().Keys.ClaimKey(ctx, c)
		a = driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}
		return ok, err
	}
	end := func(state store.KeyState) (bool, error) {
		return s.Driver().Keys.EndKey(ctx, a, driver.KeyEnd{State: state, Answer: driver.KeyAnswer{Retention: time.Hour}})
	}
	resolve := func(state store.KeyState) (bool, error) {
		return s.Driver().KeyRecords.ResolveKey(ctx, a.KeyID, driver.KeyEnd{State: state, Answer: driver.KeyAnswer{Retention: time.Hour}})
	}
	steps := []func() (bool, error){
		claim,
		func() (bool, error) { return s.Driver().Keys.RenewKey(ctx, a, time.Hour) },
		func() (bool, error) { return end(store.KeyFailed) },
		claim,
		func() (bool, error) { return end(store.KeyUncertain) },
		func() (bool, error) { return resolve(store.KeyFailed) },
		claim,
		func() (bool, error) { return end(store.KeyUncertain) },
		func() (bool, error) { return resolve(store.KeySucceeded) },
	}
	for i, step := range steps {
		if did, err := step(); err != nil || !did {
			t.Fatalf("step %d: %v, %v", i, did, err)
		}
	}
	var n, off int
	err := pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE mode = 'off') FROM "`+schema+`".seen`).Scan(&n, &off)
	if err != nil || n != len(steps) || off != 0 {
		t.Errorf("%d changes, %d of them not durable, %v", n, off, err)
	}
}

// TestKeyRoundTrips: among repeats, a repeat costs one round trip. A key adds
// one round trip to a transaction, which BEGIN shares; the answer is sent with
// the COMMIT. Where repeats are rare, a repeat costs a second round trip,
// because the store does not peek for new keys.
func TestKeyRoundTrips(t *testing.T) {
	pool, w := openWire(t, nil)
	s, _ := openStore(t, pool)
	keys, err := idempotency.New(s, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	do := func(key string) error {
		_, err := idempotency.Do(ctx, keys, keyRequest(key), func(context.Context) (int, error) { return 1, nil })
		return err
	}
	doTx := func(key string) error {
		_, err := idempotency.DoTx(ctx, keys, keyRequest(key), func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, "SELECT 1")
			return 1, err
		})
		return err
	}
	for _, tc := range []struct {
		name                string
		do                  func(key string) error
		first, fresh, found int64
	}{{"Do", do, 3, 2, 2}, {"DoTx", doTx, 4, 3, 2}} {
		count := func(what, key string, want int64) {
			t.Helper()
			before := w.sent.Load()
			if err := tc.do(tc.name + key); err != nil {
				t.Fatal(err)
			}
			if n := w.sent.Load() - before; n != want && want > 0 {
				t.Errorf("%s, %s: %d round trips, want %d", tc.name, what, n, want)
			}
		}
		repeats := func() {
			for range 20 {
				count("", "0", 0)
			}
		}
		// Warm up: all statements are prepared in round trips of their own.
		count("", "0", 0)
		repeats()

		count("a repeat", "0", 1)
		count("a new key among repeats", "new", tc.first)
		for i := range 32 {
			count("", fmt.Sprint("more ", i), 0)
		}
		count("a new key among new ones", "newer", tc.fresh)
		count("", "newer", 0)
		for i := range 12 { // every fourth is too few to peek
			count("a repeat among new keys", "newer", tc.found)
			for j := range 3 {
				count("a new key among a few repeats", fmt.Sprint("newest ", i, j), tc.fresh)
			}
		}
		repeats()
		count("a repeat after many", "newer", 1)
	}
}

func keyRequest(key string) idempotency.Request {
	return idempotency.Request{TenantID: "t", Operation: "pay", Key: key, Hash: idempotency.Hash("v1:" + strings.Repeat("a", 64))}
}
