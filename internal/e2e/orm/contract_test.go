package orm_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox/outboxtest"
)

// writer writes further events into the current transaction.
type writer func(evs ...waybill.Event) error

// contract checks the guarantees of every recipe: own runs in a transaction
// that the library begins and ends, joined in one of InTx. Both place an order,
// write its event, and call then, all in that transaction.
type contract[T any] struct {
	open   func(t *testing.T) shop[T]
	own    func(ctx context.Context, s shop[T], o Order, then func(writer) error) error
	joined func(ctx context.Context, s shop[T], o Order, then func() error) error
}

var order = Order{ID: "A-1", Total: 9990}

func (c contract[T]) run(t *testing.T) {
	t.Run("OwnCommit", c.ownCommit)
	t.Run("OwnError", c.ownError)
	t.Run("OwnPanic", c.ownPanic)
	t.Run("OwnRefused", c.ownRefused)
	t.Run("OwnMany", c.ownMany)
	t.Run("OwnTooLate", c.ownTooLate)
	t.Run("JoinedCommit", c.joinedCommit)
	t.Run("JoinedError", c.joinedError)
	t.Run("JoinedPanic", c.joinedPanic)
}

func (c contract[T]) ownCommit(t *testing.T) {
	s := c.open(t)
	heard := s.listen(t)
	err := c.own(t.Context(), s, order, func(writer) error {
		if n := len(s.events(t)); n != 0 {
			t.Errorf("%d events are there before the commit", n)
		}
		if len(*heard) != 0 {
			t.Error("the hub was told before the commit")
		}
		if err := s.box.Emit(t.Context(), OrderPlaced.New("A-2", Placed{})); !errors.Is(err, waybill.ErrNoTx) {
			t.Errorf("emit: got the error %v, want %v", err, waybill.ErrNoTx)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
	if len(*heard) != 1 {
		t.Errorf("the hub was told %d times, want one Wake after the commit", len(*heard))
	}
	outboxtest.None(t, s.rec, OrderPlaced) // Waybill has not seen the commit
}

func (c contract[T]) ownError(t *testing.T) {
	s := c.open(t)
	heard := s.listen(t)
	err := c.own(t.Context(), s, order, func(writer) error { return errChanged })
	if !errors.Is(err, errChanged) {
		t.Errorf("got the error %v, want %v", err, errChanged)
	}
	s.wants(t)
	if len(*heard) != 0 {
		t.Error("the hub was told of a rollback")
	}
}

func (c contract[T]) ownPanic(t *testing.T) {
	s := c.open(t)
	heard := s.listen(t)
	wantPanic(t, func() {
		_ = c.own(t.Context(), s, order, func(writer) error { panic(errChanged) })
	})
	s.wants(t)
	if len(*heard) != 0 {
		t.Error("the hub was told of a rollback")
	}
}

// ownRefused swallows the database error of an event: PostgreSQL does not
// commit then.
func (c contract[T]) ownRefused(t *testing.T) {
	s := c.open(t)
	if _, err := s.pool.Exec(t.Context(), `ALTER TABLE waybill_outbox ADD CHECK (aggregate_id <> 'refused')`); err != nil {
		t.Fatal(err)
	}
	err := c.own(t.Context(), s, order, func(write writer) error {
		if err := write(OrderPlaced.New("refused", Placed{})); err == nil {
			t.Error("the event was not refused")
		}
		return nil
	})
	if err == nil {
		t.Error("the commit was not refused")
	}
	s.wants(t)
}

// ownMany writes with every form of the store's statement through the library:
// one event, several, and one with a key.
func (c contract[T]) ownMany(t *testing.T) {
	s := c.open(t)
	var want []waybill.ID
	for range 2 { // the second time from the library's cache
		err := c.own(t.Context(), s, Order{ID: waybill.NewID().String()}, func(write writer) error {
			evs := make([]waybill.Event, 4)
			for i := range evs {
				evs[i] = OrderPlaced.New("many", Placed{Total: int64(i)})
				evs[i].ID = waybill.NewID()
				want = append(want, evs[i].ID)
			}
			evs[2].DedupKey = "only " + evs[2].ID.String()
			same := evs[2]
			same.ID = waybill.NewID() // absorbed: the key is taken
			return errors.Join(write(evs[:2]...), write(evs[2]), write(same), write(evs[3]))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []waybill.ID
	for _, ev := range s.events(t) {
		if ev.AggregateID == "many" {
			got = append(got, ev.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got the events %v, want %v", got, want)
	}
	// A caller that chose the id can query it when the outcome of the library's
	// commit is unknown.
	if committed, err := s.box.Committed(t.Context(), want[0]); !committed || err != nil {
		t.Errorf("committed: got %v, %v", committed, err)
	}
}

func (c contract[T]) ownTooLate(t *testing.T) {
	s := c.open(t)
	var late writer
	err := c.own(t.Context(), s, order, func(write writer) error {
		late = write
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := late(OrderPlaced.New("late", Placed{})); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("a write after the commit: got the error %v, want %v", err, waybill.ErrTxDone)
	}
	s.wants(t, order)
}

func (c contract[T]) joinedCommit(t *testing.T) {
	s := c.open(t)
	heard := s.listen(t)
	if err := c.joined(t.Context(), s, order, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
	ev, payload := outboxtest.One(t, s.rec, OrderPlaced)
	if ev.AggregateID != order.ID || payload.Total != order.Total {
		t.Errorf("the hook saw %s with %v", ev.AggregateID, payload)
	}
	if len(*heard) != 1 || len((*heard)[0].Entries) != 1 || (*heard)[0].Entries[0].Event.ID != ev.ID {
		t.Errorf("the hub was told %v, want the one event", *heard)
	}
}

func (c contract[T]) joinedError(t *testing.T) {
	s := c.open(t)
	if err := c.joined(t.Context(), s, order, func() error { return errChanged }); !errors.Is(err, errChanged) {
		t.Errorf("got the error %v, want %v", err, errChanged)
	}
	s.wants(t)
	outboxtest.None(t, s.rec, OrderPlaced)
}

func (c contract[T]) joinedPanic(t *testing.T) {
	s := c.open(t)
	wantPanic(t, func() {
		_ = c.joined(t.Context(), s, order, func() error { panic(errChanged) })
	})
	s.wants(t)
	outboxtest.None(t, s.rec, OrderPlaced)
}

// wantPanic calls fn, which must propagate a panic with errChanged.
func wantPanic(t *testing.T, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if r := recover(); r != any(errChanged) {
			t.Errorf("got the panic %v, want %v", r, errChanged)
		}
	}()
	fn()
}
