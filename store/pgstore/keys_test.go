package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

func keyClaim(key string) store.KeyClaim {
	return store.KeyClaim{
		KeyID: store.KeyID{Tenant: "t", Operation: "pay", Key: key}, Hash: "v1:hash", Owner: waybill.NewID(), Lease: time.Hour,
	}
}

// TestKeyLocked: a record that another transaction has locked is busy, and not waited for, even if that one does not hold the key's own lock.
func TestKeyLocked(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "10s" })
	s, schema := openStore(t, pool)
	ctx := t.Context()
	c := keyClaim("locked")
	rec, ok, err := s.ClaimKey(ctx, c)
	if err != nil || !ok {
		t.Fatalf("ClaimKey: %v, %v", ok, err)
	}
	a := store.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}
	if ok, err := s.EndKey(ctx, a, store.KeyEnd{State: store.KeyFailed, Answer: store.KeyAnswer{TTL: time.Hour}}); err != nil || !ok {
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
		got, err := s.TakeKey(ctx, tx, next)
		if err == nil && !got.Busy {
			t.Errorf("a key whose record is locked: %+v", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestKeysAreDurable: what is decided about a key outside of the caller's transaction is on disk, even where the session's default is not to wait.
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
	var a store.KeyAttempt
	claim := func() (bool, error) {
		c := keyClaim("durable")
		rec, ok, err := s.ClaimKey(ctx, c)
		a = store.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: rec.Fence}
		return ok, err
	}
	end := func(state store.KeyState) (bool, error) {
		return s.EndKey(ctx, a, store.KeyEnd{State: state, Answer: store.KeyAnswer{TTL: time.Hour}})
	}
	resolve := func(state store.KeyState) (bool, error) {
		return s.ResolveKey(ctx, a.KeyID, store.KeyEnd{State: state, Answer: store.KeyAnswer{TTL: time.Hour}})
	}
	steps := []func() (bool, error){
		claim,
		func() (bool, error) { return s.RenewKey(ctx, a, time.Hour) },
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
