package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// unsteady is a store with scripted commits.
type unsteady struct {
	driver.Complete[*memstore.Tx]
	// commit replaces the session's Commit; next calls the original.
	commit func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error)
}

type unsteadySession struct {
	driver.Session[*memstore.Tx]
	db *unsteady
}

func (u *unsteady) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[*memstore.Tx], error) {
	s, err := u.Complete.Begin(ctx, opts)
	return &unsteadySession{Session: s, db: u}, err
}

func (s *unsteadySession) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	end, err := s.db.commit(func() (driver.CommitInfo, error) { return s.Session.Commit(ctx, accepted, check) })
	if err != nil && !errors.Is(err, waybill.ErrUncertain) {
		_ = s.Rollback(ctx) // a failed commit has rolled back
	}
	return end, err
}

var errCollided = errors.New("could not serialize")

func (u *unsteady) IsRetryable(err error) bool { return errors.Is(err, errCollided) }

func newUnsteady(t *testing.T) (*unsteady, *inbox.Group[*memstore.Tx]) {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	u := &unsteady{Complete: testroles.Complete[*memstore.Tx](db), commit: func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) { return next() }}
	in, err := inbox.New(testroles.Of[*memstore.Tx](u), inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return u, in.MustGroup("G", inbox.Options{})
}

// ways returns the ways to consume an event.
func ways(g *inbox.Group[*memstore.Tx], fn inbox.HandlerFunc[*memstore.Tx]) map[string]func(ev waybill.Event) error {
	ctx := context.Background()
	return map[string]func(ev waybill.Event) error{
		"at first": func(ev waybill.Event) error {
			_, err := g.Consume(ctx, ev, fn)
			return err
		},
		"again": func(ev waybill.Event) error {
			_, err := g.Consume(waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: ev, Attempt: 2}), ev, fn)
			return err
		},
		"leased": func(ev waybill.Event) error {
			_, err := g.ConsumeLeased(ctx, ev, func(ctx context.Context, l *inbox.Lease[*memstore.Tx]) error {
				return l.Finish(ctx, func(ctx context.Context, tx *memstore.Tx) error { return fn(ctx, tx, ev) })
			})
			return err
		},
	}
}

// TestUncertainCommit: when the commit's response is lost, the record shows
// whether this attempt succeeded. Without a record, Consume reports neither
// success nor a counted failure.
func TestUncertainCommit(t *testing.T) {
	for _, committed := range []bool{true, false} {
		u, g := newUnsteady(t)
		nothing := func(context.Context, *memstore.Tx, waybill.Event) error { return nil }
		for way, consume := range ways(g, nothing) {
			t.Run(fmt.Sprint(way, " committed ", committed), func(t *testing.T) {
				lost := true
				u.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
					if !lost {
						return next()
					}
					lost = false
					if committed {
						if _, err := next(); err != nil {
							return driver.CommitInfo{}, err
						}
					}
					return driver.CommitInfo{}, fmt.Errorf("%w: the connection is gone", waybill.ErrUncertain)
				}
				ev := eventfill.Defaults(waybill.NewEvent("A", 1))
				err := consume(ev)
				rec, ok, ferr := g.Find(t.Context(), ev)
				switch class, _ := waybill.Classify(err); {
				case ferr != nil:
					t.Fatal(ferr)
				case committed && (err != nil || rec.State != store.InboxSucceeded):
					t.Errorf("it is committed: %v, %+v", err, rec)
				case !committed && (!errors.Is(err, waybill.ErrUncertain) || class != waybill.ClassDefer):
					t.Errorf("the outcome is unknown: %v of class %v", err, class)
				case !committed && ok && rec.State == store.InboxSucceeded:
					t.Errorf("the record is %+v", rec)
				}
			})
		}
	}
}

// TestAnotherAttemptsSuccess: the record of another attempt does not turn an
// uncertain commit into a success.
func TestAnotherAttemptsSuccess(t *testing.T) {
	u, g := newUnsteady(t)
	ev := eventfill.Defaults(waybill.NewEvent("A", 1))
	first := true
	u.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
		if !first {
			return next()
		}
		first = false
		return driver.CommitInfo{}, fmt.Errorf("%w: the connection is gone", waybill.ErrUncertain)
	}
	// The session is still open, as it would be on the server after a lost
	// connection, so the second call gets ErrInProgress.
	if _, err := g.Consume(t.Context(), ev, func(context.Context, *memstore.Tx, waybill.Event) error { return nil }); !errors.Is(err, waybill.ErrUncertain) {
		t.Fatalf("the first: %v", err)
	}
	if _, err := g.Consume(t.Context(), ev, func(context.Context, *memstore.Tx, waybill.Event) error { return nil }); !errors.Is(err, waybill.ErrInProgress) {
		t.Errorf("while it may still be committed: %v", err)
	}
}

// TestRestarts: a transaction that failed because of a conflict is run again, a
// bounded number of times, and no attempt is counted.
func TestRestarts(t *testing.T) {
	u, g := newUnsteady(t)
	calls := 0
	count := func(context.Context, *memstore.Tx, waybill.Event) error { calls++; return nil }
	for way, consume := range ways(g, count) {
		t.Run(way, func(t *testing.T) {
			collisions := 3
			u.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
				if collisions > 0 {
					collisions--
					return driver.CommitInfo{}, errCollided
				}
				return next()
			}
			calls = 0
			ev := eventfill.Defaults(waybill.NewEvent("A", 1))
			if err := consume(ev); err != nil || calls != 4 {
				t.Errorf("after three collisions: %v, %d calls", err, calls)
			}
			if rec, ok, err := g.Find(t.Context(), ev); err != nil || !ok || rec.State != store.InboxSucceeded || rec.Attempts != 1 {
				t.Errorf("the record is %+v, %v", rec, err)
			}
			collisions = 1000
			calls = 0
			other := eventfill.Defaults(waybill.NewEvent("A", 2))
			err := consume(other)
			if class, _ := waybill.Classify(err); !errors.Is(err, errCollided) || class != waybill.ClassDefer || calls < 2 || calls > 50 {
				t.Errorf("after many collisions: %v, %d calls", err, calls)
			}
			if rec, ok, err := g.Find(t.Context(), other); err != nil || ok && (rec.State != store.InboxFailed || rec.Attempts != 0) {
				t.Errorf("the record is %+v, %v", rec, err)
			}
		})
	}
}

// cutOff is a store whose claims commit after their callers have gone.
type cutOff struct {
	driver.Complete[*memstore.Tx]
	cut context.CancelFunc
}

func (c *cutOff) ClaimEvent(ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte) (store.InboxRecord, bool, error) {
	rec, ok, err := c.Complete.ClaimEvent(ctx, in, owner, lease, maxAttempts, kept)
	if c.cut != nil {
		c.cut()
		return store.InboxRecord{}, false, ctx.Err()
	}
	return rec, ok, err
}

// TestClaimCutOff: a claim whose context ends before the response leaves no
// lease behind, and no attempt is counted.
func TestClaimCutOff(t *testing.T) {
	t.Parallel()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &cutOff{Complete: testroles.Complete[*memstore.Tx](db)}
	in, err := inbox.New(testroles.Of[*memstore.Tx](c), inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := in.MustGroup("G", inbox.Options{})
	ev := eventfill.Defaults(waybill.NewEvent("Placed", 1))
	again := waybill.ContextWithDelivery(context.Background(), waybill.Delivery{Event: ev, Attempt: 2})
	ctx, cancel := context.WithCancel(again)
	c.cut = cancel
	handled := 0
	handle := func(context.Context, *memstore.Tx, waybill.Event) error {
		handled++
		return nil
	}
	if _, err := g.Consume(ctx, ev, handle); !errors.Is(err, context.Canceled) || handled > 0 {
		t.Fatalf("handled %d times, %v; want a claim that was cut off", handled, err)
	}
	c.cut = nil
	res, err := g.Consume(again, ev, handle)
	if err != nil || res.Attempt != 1 || handled != 1 {
		t.Errorf("the next one: %+v, %v, handled %d times", res, err, handled)
	}
}
