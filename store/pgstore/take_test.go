package pgstore_test

import (
	"context"
	"errors"
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
	"github.com/waybillhq/waybill/store/pgstore"
)

// takeEnv is a store with a table for the effects of runs.
type takeEnv struct {
	*pgstore.Store
	pool   *pgxpool.Pool
	keys   *idempotency.Keys[pgx.Tx]
	schema string
}

func newTakeEnv(t *testing.T, change func(*pgxpool.Config)) *takeEnv {
	t.Helper()
	pool := openPool(t, change)
	s, schema := openStore(t, pool)
	keys, err := idempotency.New(s, idempotency.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e := &takeEnv{Store: s, pool: pool, keys: keys, schema: schema}
	e.exec(t, `CREATE TABLE {schema}.made (n int)`)
	return e
}

func (e *takeEnv) sql(query string) string {
	return strings.ReplaceAll(query, "{schema}", `"`+e.schema+`"`)
}

func (e *takeEnv) exec(t *testing.T, query string) {
	t.Helper()
	if _, err := e.pool.Exec(t.Context(), e.sql(query)); err != nil {
		t.Fatal(err)
	}
}

// made returns the number of committed effects.
func (e *takeEnv) made(t *testing.T) (n int) {
	t.Helper()
	if err := e.pool.QueryRow(t.Context(), e.sql(`SELECT count(*) FROM {schema}.made`)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (e *takeEnv) begin(t *testing.T) driver.Session[pgx.Tx] {
	t.Helper()
	session, err := e.Driver().Keys.Begin(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Rollback(context.Background()) })
	return session
}

// TestKeyLostInItsTransaction: if the transaction does not hold its key when
// the answer is stored, nothing is committed.
func TestKeyLostInItsTransaction(t *testing.T) {
	for name, tc := range map[string]struct {
		before error // of an earlier run of the key
		lose   string
	}{
		"another transaction":     {nil, `ROLLBACK; BEGIN; INSERT INTO {schema}.made VALUES (2)`},
		"a record that is gone":   {errors.New("failed"), `DELETE FROM {schema}.waybill_idempotency`},
		"a record that was taken": {errors.New("failed"), `UPDATE {schema}.waybill_idempotency SET fence = fence + 1`},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakeEnv(t, nil)
			ctx := t.Context()
			if tc.before != nil {
				_, _ = idempotency.Do(ctx, e.keys, keyRequest("lost"), func(context.Context) (int, error) { return 0, tc.before })
			}
			_, err := idempotency.DoTx(ctx, e.keys, keyRequest("lost"), func(ctx context.Context, tx pgx.Tx) (int, error) {
				if _, err := tx.Exec(ctx, e.sql(`INSERT INTO {schema}.made VALUES (1)`)); err != nil {
					return 0, err
				}
				_, err := tx.Conn().Exec(ctx, e.sql(tc.lose))
				return 1, err
			})
			if !errors.Is(err, waybill.ErrLeaseLost) || errors.Is(err, waybill.ErrUncertain) {
				t.Errorf("DoTx: %v", err)
			}
			if n := e.made(t); n != 0 {
				t.Errorf("%d effects are committed", n)
			}
		})
	}
}

// storedElsewhere creates the record of a key as a writer does that does not
// know the key's lock.
const storedElsewhere = `INSERT INTO {schema}.waybill_idempotency
 (tenant, operation, key, request_hash, status, owner, fence, attempts, result, content_type, completed_at, expires_at, purge_at)
VALUES ('t', 'pay', 'raced', 'v1:%s', 1, gen_random_uuid(), 1, 1, '7', 'application/json', now(), now() + interval '1 day', now() + interval '1 day')`

// TestKeyOvertaken: if the key got a record during the run, the run is rolled
// back, and the request gets the answer of the record.
func TestKeyOvertaken(t *testing.T) {
	e := newTakeEnv(t, nil)
	runs := 0
	res, err := idempotency.DoTx(t.Context(), e.keys, keyRequest("raced"), func(ctx context.Context, tx pgx.Tx) (int, error) {
		runs++
		e.exec(t, fmt.Sprintf(storedElsewhere, strings.Repeat("a", 64)))
		_, err := tx.Exec(ctx, e.sql(`INSERT INTO {schema}.made VALUES (1)`))
		return 1, err
	})
	if err != nil || !res.Replayed || res.Value != 7 || runs != 1 {
		t.Errorf("DoTx: %+v, %v after %d runs", res, err, runs)
	}
	if n := e.made(t); n != 0 {
		t.Errorf("%d effects are committed", n)
	}
}

// TestStoreAnswerOfALostKey: StoreAnswer reports that the transaction does not
// hold its key.
func TestStoreAnswerOfALostKey(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, e *takeEnv, tx pgx.Tx){
		"a record of another run": func(t *testing.T, e *takeEnv, _ pgx.Tx) { e.exec(t, fmt.Sprintf(storedElsewhere, "hash")) },
		"another transaction": func(t *testing.T, _ *takeEnv, tx pgx.Tx) {
			if _, err := tx.Conn().Exec(t.Context(), `ROLLBACK; BEGIN`); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTakeEnv(t, nil)
			session := e.begin(t)
			got, err := e.Driver().Keys.TakeKey(t.Context(), session.Tx(), keyClaim("raced"))
			if err != nil || !got.Taken {
				t.Fatalf("TakeKey: %+v, %v", got, err)
			}
			lose(t, e, session.Tx())
			ok, err := e.Driver().Keys.StoreAnswer(t.Context(), session.Tx(), got.Attempt, driver.KeyAnswer{Retention: time.Hour})
			if ok || err != nil {
				t.Errorf("StoreAnswer: %v, %v", ok, err)
			}
		})
	}
}

// TestTakeKeyReadsBehindTheLock: a record that a transaction commits between
// the BEGIN and the lock is visible to the read.
func TestTakeKeyReadsBehindTheLock(t *testing.T) {
	e := newTakeEnv(t, func(c *pgxpool.Config) { c.MaxConns = 8 })
	c := keyClaim("contested")
	for range 50 {
		c.Key += "+"
		runs := make(chan bool, 4)
		for range cap(runs) {
			go func() {
				mine := c
				mine.Owner = waybill.NewID()
				runs <- e.takeAndStore(mine)
			}()
		}
		n := 0
		for range cap(runs) {
			if <-runs {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d transactions took a new key, want 1", n)
		}
	}
}

// takeAndStore reports whether it took the key. It repeats while the key is
// busy.
func (e *takeEnv) takeAndStore(c driver.KeyClaim) bool {
	ctx := context.Background()
	for {
		session, err := e.Driver().Keys.Begin(ctx, nil)
		if err != nil {
			return false
		}
		got, err := e.Driver().Keys.TakeKey(ctx, session.Tx(), c)
		if err == nil && got.Taken {
			_, err = e.Driver().Keys.(driver.AnswerAtCommit[pgx.Tx]).StoreAnswerAtCommit(ctx, session.Tx(), got.Attempt, driver.KeyAnswer{Retention: time.Hour})
			if err == nil {
				_, err = session.Commit(ctx, nil, false)
			}
		}
		_ = session.Rollback(ctx)
		if err != nil || !got.Busy {
			return got.Taken
		}
	}
}

// TestClaimKeyWaitsForTakenKey: a claim waits for the transaction that has
// taken a new key, although the key has no record yet.
func TestClaimKeyWaitsForTakenKey(t *testing.T) {
	e := newTakeEnv(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" })
	ctx := t.Context()
	session := e.begin(t)
	c := keyClaim("taken")
	got, err := e.Driver().Keys.TakeKey(ctx, session.Tx(), c)
	if err != nil || !got.Taken {
		t.Fatalf("TakeKey: %+v, %v", got, err)
	}
	if rec, ok, err := e.Driver().Keys.ClaimKey(ctx, keyClaim("taken")); err == nil {
		t.Errorf("a claim did not wait: %+v, %v", rec, ok)
	}
	if ok, err := e.Driver().Keys.StoreAnswer(ctx, session.Tx(), got.Attempt, driver.KeyAnswer{Ref: "done", Retention: time.Hour}); err != nil || !ok {
		t.Fatalf("StoreAnswer: %v, %v", ok, err)
	}
	if _, err := session.Commit(ctx, nil, false); err != nil {
		t.Fatal(err)
	}
	rec, ok, err := e.Driver().Keys.ClaimKey(ctx, keyClaim("taken"))
	if err != nil || ok || rec.State != store.KeySucceeded || rec.Ref != "done" || rec.Owner != c.Owner {
		t.Errorf("after the commit: %+v, %v, %v", rec, ok, err)
	}
}

// TestTakeKeyBehindAStatement: a transaction may take a key after other
// statements. A rollback to a savepoint that is older than the key gives the
// key back, and its answer is not stored.
func TestTakeKeyBehindAStatement(t *testing.T) {
	e := newTakeEnv(t, nil)
	ctx := t.Context()
	session := e.begin(t)
	inner, err := session.Tx().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Driver().Keys.TakeKey(ctx, session.Tx(), keyClaim("late"))
	if err != nil || !got.Taken {
		t.Fatalf("TakeKey: %+v, %v", got, err)
	}
	if err := inner.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if ok, err := e.Driver().Keys.StoreAnswer(ctx, session.Tx(), got.Attempt, driver.KeyAnswer{Retention: time.Hour}); ok || err != nil {
		t.Errorf("StoreAnswer: %v, %v", ok, err)
	}
}
