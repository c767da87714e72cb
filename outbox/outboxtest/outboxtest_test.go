package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/store/memstore"
)

type placed struct{ Total int }

var (
	orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})
	cartPlaced  = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "cart"})
	ping        = waybill.Define[string]("Ping", waybill.Spec{})
)

func open(t testing.TB, r *outboxtest.Recorder) *outbox.Outbox[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{r.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func TestRecorderRecordsWhatIsCommitted(t *testing.T) {
	var r outboxtest.Recorder
	box := open(t, &r)
	boom := errors.New("boom")
	for i, end := range []error{nil, boom, nil} {
		err := box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error {
			err := box.Write(ctx, tx, orderPlaced.New(fmt.Sprint("o-", i), placed{Total: i}), ping.New("", "x"))
			if n := len(r.Events()); n != 2*min(i, 1) {
				t.Errorf("%d events are recorded inside transaction %d", n, i)
			}
			return errors.Join(err, end)
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
	}
	var got []string
	for _, ev := range r.Events() {
		got = append(got, ev.Type+ev.AggregateID)
	}
	if want := "OrderPlacedo-0 Ping OrderPlacedo-2 Ping"; strings.Join(got, " ") != want {
		t.Errorf("recorded are %v, want %s", got, want)
	}
	events := r.Events()
	events[0].Type = "changed"
	if r.Events()[0].Type != "OrderPlaced" {
		t.Error("the recorder returns its own slice")
	}
	r.Reset()
	if len(r.Events()) != 0 {
		t.Error("Reset left some")
	}
}

func TestRecorderEmit(t *testing.T) {
	var r outboxtest.Recorder
	ctx := waybill.ContextWithOrigin(t.Context(), waybill.Origin{TenantID: "acme"})
	if err := r.Emit(ctx, orderPlaced.New("o-1", placed{}), ping.New("", "x")); err != nil {
		t.Fatal(err)
	}
	got := r.Events()
	if len(got) != 2 || got[0].TenantID != "acme" || got[0].ID.IsZero() || got[1].Topic != "Ping" {
		t.Errorf("recorded are %+v", got)
	}
	// One invalid event rejects the whole call, as in a write.
	if err := r.Emit(ctx, ping.New("", "y"), orderPlaced.New("", placed{})); err == nil || len(r.Events()) != 2 {
		t.Errorf("an event that no outbox would take: %v, %d recorded", err, len(r.Events()))
	}
}

func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	var r outboxtest.Recorder
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if err := r.Emit(context.Background(), ping.New("", "x")); err != nil {
					t.Error(err)
				}
				r.Events()
			}
		})
	}
	wg.Wait()
	if n := len(r.Events()); n != 400 {
		t.Errorf("%d of 400 were recorded", n)
	}
}

// fakeT records test failures.
type fakeT struct {
	testing.TB
	failed string
}

func (f *fakeT) Helper()                      {}
func (f *fakeT) Errorf(s string, args ...any) { f.failed += fmt.Sprintf(s, args...) }

func (f *fakeT) Fatalf(s string, args ...any) {
	f.Errorf(s, args...)
	runtime.Goexit()
}

// failure returns the failure message of fn.
func failure(fn func(t testing.TB)) string {
	f := &fakeT{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
	return f.failed
}

func TestOneAndNone(t *testing.T) {
	var r outboxtest.Recorder
	one := func(t testing.TB) { outboxtest.One(t, &r, orderPlaced) }
	none := func(t testing.TB) { outboxtest.None(t, &r, orderPlaced) }
	emit := func(evs ...waybill.Event) {
		if err := r.Emit(t.Context(), evs...); err != nil {
			t.Fatal(err)
		}
	}
	// Same type, other aggregate.
	emit(ping.New("", "x"), cartPlaced.New("c-1", placed{}))
	if got := failure(one); !strings.Contains(got, "0 events") || !strings.Contains(got, "Ping") {
		t.Errorf("One of none failed with %q", got)
	}
	if got := failure(none); got != "" {
		t.Errorf("None of none failed with %q", got)
	}
	emit(orderPlaced.New("o-1", placed{Total: 9990}))
	ev, p := outboxtest.One(t, &r, orderPlaced)
	if ev.AggregateID != "o-1" || p.Total != 9990 {
		t.Errorf("One returned %+v, %+v", ev, p)
	}
	if got := failure(none); !strings.Contains(got, "1 events of type OrderPlaced") {
		t.Errorf("None of one failed with %q", got)
	}
	emit(orderPlaced.New("o-2", placed{}))
	if got := failure(one); !strings.Contains(got, "2 events") {
		t.Errorf("One of two failed with %q", got)
	}
	r.Reset()
	emit(waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "o-3", Payload: []byte(`"not a placed"`)})
	if got := failure(one); !strings.Contains(got, "decode") {
		t.Errorf("One that does not decode failed with %q", got)
	}
}

func ExampleRecorder() {
	var r outboxtest.Recorder // passed to code that needs an Emit method
	err := r.Emit(context.Background(), orderPlaced.New("o-1", placed{Total: 9990}))
	fmt.Println(err)
	for _, ev := range r.Events() {
		fmt.Println(ev.Type, ev.AggregateID)
	}
	// Output:
	// <nil>
	// OrderPlaced o-1
}
