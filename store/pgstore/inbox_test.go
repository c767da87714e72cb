package pgstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func intake(group string) store.InboxEntry {
	key := waybill.NewID()
	return store.InboxEntry{Group: group, Key: key, Event: key, Tenant: "acme", Type: "OrderPlaced", Hash: [16]byte{1, 2, 3}}
}

func attemptOf(r store.InboxRecord) driver.Attempt {
	return driver.Attempt{Group: r.Group, Key: r.Key, Owner: r.Owner, Fence: r.Fence}
}

// face is one of the two stores, with its transactions behind functions.
type face struct {
	driver.Claimer
	driver.InboxRecords
	driver.RetryClassifier
	// begin starts a transaction, with the isolation level if one is given.
	begin func(t *testing.T, level sql.IsolationLevel) faceTx
}

type faceTx struct {
	accept           func(ctx context.Context, owner waybill.ID, in ...store.InboxEntry) ([]driver.AcceptResult, error)
	succeed          func(ctx context.Context, a driver.Attempt) (bool, error)
	exec             func(ctx context.Context, query string) error
	commit, rollback func() error
}

// acceptAll accepts events, and commits.
func (f face) acceptAll(t *testing.T, in ...store.InboxEntry) {
	t.Helper()
	tx := f.begin(t, sql.LevelDefault)
	got, err := tx.accept(t.Context(), waybill.NewID(), in...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if !got[i].Accepted {
			t.Fatalf("%d was not accepted: %+v", i, got[i])
		}
	}
	if err := tx.commit(); err != nil {
		t.Fatal(err)
	}
}

func (f face) claim(t *testing.T, in store.InboxEntry, lease time.Duration, maxAttempts int) (store.InboxRecord, bool) {
	t.Helper()
	rec, taken, err := f.ClaimEvent(t.Context(), in, waybill.NewID(), lease, maxAttempts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rec, taken
}

func (f face) find(t *testing.T, in store.InboxEntry) (store.InboxRecord, bool) {
	t.Helper()
	rec, there, err := f.FindRecord(t.Context(), in.Group, in.Key)
	if err != nil {
		t.Fatal(err)
	}
	return rec, there
}

// eachFace runs a test for pgx and for database/sql.
func eachFace(t *testing.T, fn func(t *testing.T, f face, pool *pgxpool.Pool, schema string)) {
	t.Run("pgx", func(t *testing.T) {
		pool := openPool(t, nil)
		db, schema := openStore(t, pool)
		fn(t, face{Claimer: db.Driver().Inbox, InboxRecords: db.Driver().InboxRecords, RetryClassifier: db.Driver().Inbox.(driver.RetryClassifier), begin: func(t *testing.T, level sql.IsolationLevel) faceTx {
			t.Helper()
			session, err := db.Driver().Outbox.Begin(t.Context(), &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = session.Rollback(context.Background()) })
			return faceTx{
				accept: func(ctx context.Context, owner waybill.ID, in ...store.InboxEntry) ([]driver.AcceptResult, error) {
					return db.Driver().Inbox.Accept(ctx, session.Tx(), owner, in)
				},
				succeed: func(ctx context.Context, a driver.Attempt) (bool, error) {
					return db.Driver().Inbox.Succeed(ctx, session.Tx(), a)
				},
				exec: func(ctx context.Context, query string) error { _, err := session.Tx().Exec(ctx, query); return err },
				commit: func() error {
					_, err := session.Commit(context.Background(), nil, false)
					return err
				},
				rollback: func() error { return session.Rollback(context.Background()) },
			}
		}}, pool, schema)
	})
	t.Run("sql", func(t *testing.T) {
		pool := openPool(t, nil)
		pgxdb, schema := openStore(t, pool)
		sqldb := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = sqldb.Close() })
		db := pgxdb.SQL(sqldb)
		fn(t, face{Claimer: db.Driver().Inbox, InboxRecords: db.Driver().InboxRecords, RetryClassifier: db.Driver().Inbox.(driver.RetryClassifier), begin: func(t *testing.T, level sql.IsolationLevel) faceTx {
			t.Helper()
			tx, err := sqldb.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			return faceTx{
				accept: func(ctx context.Context, owner waybill.ID, in ...store.InboxEntry) ([]driver.AcceptResult, error) {
					return db.Driver().Inbox.Accept(ctx, tx, owner, in)
				},
				succeed: func(ctx context.Context, a driver.Attempt) (bool, error) {
					return db.Driver().Inbox.Succeed(ctx, tx, a)
				},
				exec:     func(ctx context.Context, query string) error { _, err := tx.ExecContext(ctx, query); return err },
				commit:   tx.Commit,
				rollback: tx.Rollback,
			}
		}}, pool, schema)
	})
}

func TestInboxAccept(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		var in []store.InboxEntry
		for i := range 300 {
			in = append(in, intake(`gr"o\up`))
			if i%3 == 0 {
				in[i].Tenant = ""
			}
		}
		// A rollback leaves nothing.
		tx := f.begin(t, sql.LevelDefault)
		if got, err := tx.accept(t.Context(), waybill.NewID(), in...); err != nil || !got[0].Accepted {
			t.Fatal(got, err)
		}
		if err := tx.rollback(); err != nil {
			t.Fatal(err)
		}
		if rec, there := f.find(t, in[0]); there {
			t.Fatalf("after the rollback there is %+v", rec)
		}
		// Accept some events, and then all, in another order.
		owner := waybill.NewID()
		tx = f.begin(t, sql.LevelDefault)
		if _, err := tx.accept(t.Context(), owner, in[:100]...); err != nil {
			t.Fatal(err)
		}
		if err := tx.commit(); err != nil {
			t.Fatal(err)
		}
		claimed, taken := f.claim(t, in[150], time.Hour, 3)
		if !taken {
			t.Fatal("an event without a record was not taken")
		}
		mixed := slices.Clone(in)
		slices.Reverse(mixed)
		tx = f.begin(t, sql.LevelDefault)
		got, err := tx.accept(t.Context(), waybill.NewID(), mixed...)
		if err != nil || len(got) != len(mixed) {
			t.Fatal(len(got), err)
		}
		if err := tx.commit(); err != nil {
			t.Fatal(err)
		}
		for i, a := range got {
			switch at := len(in) - 1 - i; {
			case at == 150:
				claimed.Now = a.Record.Now
				if a.Accepted || a.Busy || fmt.Sprint(a.Record) != fmt.Sprint(claimed) {
					t.Errorf("an event in progress: %+v, want %+v", a, claimed)
				}
			case at < 100:
				r := a.Record
				if a.Accepted || a.Busy || r.InboxEntry != in[at] || r.State != store.InboxSucceeded || r.Owner != owner || r.Fence != 1 || r.Attempts != 1 ||
					r.ProcessedAt.IsZero() || r.ReceivedAt.IsZero() || r.Now.Before(r.ProcessedAt) || !r.LeaseUntil.IsZero() {
					t.Errorf("a succeeded event: %+v", a)
				}
			case !a.Accepted || a.Busy:
				t.Errorf("a new event: %+v", a)
			}
		}
		if got, err := f.begin(t, sql.LevelDefault).accept(t.Context(), owner); err != nil || len(got) != 0 {
			t.Errorf("nothing to accept: %v, %v", got, err)
		}
	})
}

// Accept reports a busy event immediately, regardless of what the other
// transaction does to the record, and of the other events in the call.
func TestInboxAcceptNeverWaits(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
		twice, other, held := intake("g"), intake("g"), intake("g")
		elsewhere := twice
		elsewhere.Group = "h"
		rec, _ := f.claim(t, held, time.Hour, 3)
		first := f.begin(t, sql.LevelDefault)
		if _, err := first.accept(t.Context(), waybill.NewID(), twice); err != nil {
			t.Fatal(err)
		}
		if ok, err := first.succeed(t.Context(), attemptOf(rec)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		second := f.begin(t, sql.LevelDefault)
		if err := second.exec(t.Context(), `SET LOCAL lock_timeout = '10s'`); err != nil {
			t.Fatal(err)
		}
		got, err := second.accept(t.Context(), waybill.NewID(), held, other, twice, elsewhere)
		if err != nil {
			t.Fatal(err)
		}
		if a := got[0]; a.Accepted || a.Busy || a.Record.State != store.InboxProcessing {
			t.Errorf("an event whose success is not committed: %+v", a)
		}
		if a := got[2]; a.Accepted || !a.Busy {
			t.Errorf("an event that another transaction is accepting: %+v", a)
		}
		if !got[1].Accepted || !got[3].Accepted {
			t.Errorf("others: %+v, %+v", got[1], got[3])
		}
		if err := first.rollback(); err != nil {
			t.Fatal(err)
		}
		if got, err := second.accept(t.Context(), waybill.NewID(), twice); err != nil || !got[0].Accepted {
			t.Errorf("after the first has rolled back: %+v, %v", got, err)
		}
	})
}

// insertRecord inserts a record without taking its lock.
func insertRecord(t *testing.T, tx faceTx, schema string, in store.InboxEntry) {
	t.Helper()
	err := tx.exec(t.Context(), fmt.Sprintf(`INSERT INTO "%[1]s".waybill_inbox
		(consumer_group, dedup_id, event_id, event_type, payload_hash, status, fence, attempts, processed_at)
		VALUES ('%[2]s', '%[3]s', '%[3]s', '%[4]s', '%[5]s', 1, 7, 1, clock_timestamp())`, schema, in.Group, in.Key.UUID(), in.Type, waybill.ID(in.Hash).UUID()))
	if err != nil {
		t.Fatal(err)
	}
}

// Accept finds a record that was committed after the snapshot with a second
// read.
func TestInboxAcceptReadsAgain(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, pool *pgxpool.Pool, schema string) {
		in, other := intake("g"), intake("g")
		maker := f.begin(t, sql.LevelDefault)
		insertRecord(t, maker, schema, in)
		tx := f.begin(t, sql.LevelReadCommitted)
		done := make(chan error, 1)
		var got []driver.AcceptResult
		go func() {
			var err error
			got, err = tx.accept(t.Context(), waybill.NewID(), other, in)
			done <- err
		}()
		awaitLockWait(t, pool, schema, done)
		if err := maker.commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if !got[0].Accepted || got[1].Accepted || got[1].Busy || got[1].Record.Fence != 7 {
			t.Errorf("got %+v", got)
		}
	})
}

// A transaction with an older snapshot cannot see the record, and gets a
// retryable error.
func TestInboxAcceptOfAnOldSnapshot(t *testing.T) {
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			eachFace(t, func(t *testing.T, f face, _ *pgxpool.Pool, _ string) {
				in := intake("g")
				tx := f.begin(t, level)
				if err := tx.exec(t.Context(), `SELECT 1`); err != nil {
					t.Fatal(err)
				}
				f.acceptAll(t, in)
				got, err := tx.accept(t.Context(), waybill.NewID(), in)
				if err == nil && got[0].Accepted || err != nil && !f.IsRetryable(err) {
					t.Errorf("got %+v, %v", got, err)
				}
			})
		})
	}
}

// A plan that was made while the table was nearly empty still uses the primary
// key, and the caller's settings stay unchanged.
func TestInboxAcceptUsesThePrimaryKey(t *testing.T) {
	eachFace(t, func(t *testing.T, f face, pool *pgxpool.Pool, schema string) {
		if _, err := pool.Exec(t.Context(), `ANALYZE "`+schema+`".waybill_inbox`); err != nil {
			t.Fatal(err)
		}
		for range 8 {
			var in []store.InboxEntry
			for range 100 {
				in = append(in, intake("g"))
			}
			f.acceptAll(t, in[:50]...)
			tx := f.begin(t, sql.LevelDefault)
			reads := `(SELECT coalesce(max(%s), 0) FROM pg_stat_xact_user_tables WHERE relid = '"` + schema + `".waybill_inbox'::regclass)`
			whole, rows := fmt.Sprintf(reads, "seq_scan"), fmt.Sprintf(reads, "idx_tup_fetch")
			// The counters include earlier statements of the connection.
			err := tx.exec(t.Context(), `SELECT set_config('waybill.whole', `+whole+`::text, true), set_config('waybill.rows', `+rows+`::text, true)`)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.accept(t.Context(), waybill.NewID(), in...); err != nil {
				t.Fatal(err)
			}
			err = tx.exec(t.Context(), `DO $$ BEGIN
				ASSERT `+whole+` = current_setting('waybill.whole')::bigint, 'the table was read';
				ASSERT `+rows+` - current_setting('waybill.rows')::bigint <= 100, 'an index was read';
				ASSERT current_setting('enable_seqscan') = 'on' AND current_setting('enable_bitmapscan') = 'on', 'the settings are changed';
			END $$`)
			if err == nil {
				err = tx.commit()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// An accept after a savepoint is rolled back with the savepoint, and events
// that were written before the savepoint stay.
func TestInboxAcceptKeepsItsPlace(t *testing.T) {
	pool := openPool(t, nil)
	db, _ := openStore(t, pool)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ev, in, undone := event("A"), intake("g"), intake("g")
	ev.ID = waybill.NewID()
	err = box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := box.Write(ctx, tx, ev); err != nil {
			return err
		}
		if _, err := db.Driver().Inbox.Accept(ctx, tx, waybill.NewID(), []store.InboxEntry{in}); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := db.Driver().Inbox.Accept(ctx, inner, waybill.NewID(), []store.InboxEntry{undone}); err != nil {
			return err
		}
		return inner.Rollback(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		in    store.InboxEntry
		there bool
	}{{in, true}, {undone, false}} {
		if rec, there, err := db.Driver().InboxRecords.FindRecord(t.Context(), "g", want.in.Key); err != nil || there != want.there {
			t.Errorf("got %+v, %v, %v; want it there: %v", rec, there, err, want.there)
		}
	}
	if recs, err := db.Driver().OutboxAdmin.Find(t.Context(), ev.ID); err != nil || len(recs) != 1 {
		t.Errorf("the event: %v, %v", recs, err)
	}
}

func TestInboxNeedsAnOpenTransaction(t *testing.T) {
	pool := openPool(t, nil)
	db, _ := openStore(t, pool)
	sqldb := stdlib.OpenDBFromPool(pool)
	defer sqldb.Close() //nolint:errcheck // nothing can fail
	face := db.SQL(sqldb)
	in := intake("g")
	ptx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Rollback(context.Background()) //nolint:errcheck // harmless
	if _, err := ended.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	stx, err := sqldb.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ptx.Rollback(t.Context()), stx.Rollback()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		want    error
		accept  func() ([]driver.AcceptResult, error)
		succeed func() (bool, error)
	}{
		"none": {
			waybill.ErrNoTx,
			func() ([]driver.AcceptResult, error) {
				return db.Driver().Inbox.Accept(t.Context(), nil, in.Key, []store.InboxEntry{in})
			},
			func() (bool, error) { return db.Driver().Inbox.Succeed(t.Context(), nil, driver.Attempt{}) },
		},
		"none of database/sql": {
			waybill.ErrNoTx,
			func() ([]driver.AcceptResult, error) {
				return face.Driver().Inbox.Accept(t.Context(), nil, in.Key, []store.InboxEntry{in})
			},
			func() (bool, error) { return face.Driver().Inbox.Succeed(t.Context(), nil, driver.Attempt{}) },
		},
		"an ended transaction": {
			waybill.ErrTxDone,
			func() ([]driver.AcceptResult, error) {
				return db.Driver().Inbox.Accept(t.Context(), ptx, in.Key, []store.InboxEntry{in})
			},
			func() (bool, error) { return db.Driver().Inbox.Succeed(t.Context(), ptx, driver.Attempt{}) },
		},
		"a transaction that a statement ended": {
			waybill.ErrTxDone,
			func() ([]driver.AcceptResult, error) {
				return db.Driver().Inbox.Accept(t.Context(), ended, in.Key, []store.InboxEntry{in})
			},
			func() (bool, error) { return db.Driver().Inbox.Succeed(t.Context(), ended, driver.Attempt{}) },
		},
		"an ended transaction of database/sql": {
			waybill.ErrTxDone,
			func() ([]driver.AcceptResult, error) {
				return face.Driver().Inbox.Accept(t.Context(), stx, in.Key, []store.InboxEntry{in})
			},
			func() (bool, error) { return face.Driver().Inbox.Succeed(t.Context(), stx, driver.Attempt{}) },
		},
	} {
		if got, err := tc.accept(); !errors.Is(err, tc.want) {
			t.Errorf("%s: Accept: %v, %v", name, got, err)
		}
		if got, err := tc.succeed(); !errors.Is(err, tc.want) {
			t.Errorf("%s: Succeed: %v, %v", name, got, err)
		}
	}
}
