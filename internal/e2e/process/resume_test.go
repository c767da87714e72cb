package process_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// slowReader is a store that can hold up the response of a read.
type slowReader struct {
	driver.Relay
	hold atomic.Pointer[heldRead]
}

// heldRead is a read that has seen a row and not returned it yet.
type heldRead struct {
	id   waybill.ID
	seen chan struct{}
	tell chan struct{}
}

// Fetch implements [driver.Reader].
func (s *slowReader) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	page, err := s.Relay.Fetch(ctx, from, limit)
	if h := s.hold.Load(); h != nil {
		for _, row := range page.Rows {
			if row.ID == h.id {
				s.hold.Store(nil)
				close(h.seen)
				<-h.tell
			}
		}
	}
	return page, err
}

// TestBackDuringARead: a destination becomes available while a read is in
// flight that began when it was unavailable. The read returns an event whose
// aggregate has other events that were passed over: it must not overtake them.
func TestBackDuringARead(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int, before func(waybill.ID)) {
		ev := waybill.NewEvent("Tested", n)
		ev.ID, ev.AggregateType, ev.AggregateID = waybill.NewID(), "thing", "x"
		before(ev.ID)
		err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) })
		if err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var got []string
	down, probes := true, 0
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if down {
			probes++
			return waybill.Unavailable(errors.New("away"))
		}
		got = append(got, string(d.Payload))
		return nil
	})
	slow := &slowReader{Relay: db.Driver().Relay}
	rel, err := relay.New(testroles.Of[any](slow), sink, relay.Config{
		BackoffBase: 20 * time.Millisecond, BackoffMax: 20 * time.Millisecond, PollInterval: 20 * time.Millisecond, SweepInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rel.Run(ctx) }()

	const last = 5
	for n := range last {
		add(n, func(waybill.ID) {})
	}
	written := time.Now()
	await(t, "it is known to be down, and reads do not go back as far as these", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return probes > 3 && time.Since(written) > 2500*time.Millisecond
	})
	h := &heldRead{seen: make(chan struct{}), tell: make(chan struct{})}
	add(last, func(id waybill.ID) {
		h.id = id
		slow.hold.Store(h)
	})
	<-h.seen
	mu.Lock()
	down = false
	mu.Unlock()
	await(t, "the destination is back", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) > 0
	})
	close(h.tell)
	await(t, "all are delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) > last
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if want := "[0 1 2 3 4 5]"; fmt.Sprint(got) != want {
		t.Errorf("delivered %v, want %v", got, want)
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for this: %s", what)
		}
		<-tick.C
	}
}
