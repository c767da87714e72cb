package httpkey_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func TestRetention(t *testing.T) {
	g := newGate()
	b := newEnv(t, setup{cfg: httpkey.Config{Retention: time.Hour}, run: g.ServeHTTP})
	running := b.later("k", "{}")
	receive(t, g.reached)
	if r := b.record(); !r.ExpiresAt.IsZero() {
		t.Error("it expires while it runs")
	}
	close(g.open)
	receive(t, running)
	if r := b.record(); r.ExpiresAt.Sub(r.CompletedAt) != time.Hour {
		t.Errorf("it lives from %v to %v", r.CompletedAt, r.ExpiresAt)
	}
	def := newEnv(t, setup{})
	def.post("k", "{}")
	if r := def.record(); r.ExpiresAt.Sub(r.CompletedAt) != 24*time.Hour {
		t.Errorf("it lives from %v to %v", r.CompletedAt, r.ExpiresAt)
	}
	// The answer may expire before the record.
	short := newEnv(t, setup{keys: idempotency.Config{ResultRetention: time.Millisecond}, run: func(_ http.ResponseWriter, r *http.Request) {
		httpkey.SetRef(r.Context(), "ord_1")
	}})
	short.post("k", "{}")
	short.await("the answer expires", func() bool { return !short.post("k", "{}").replayed() })
	a := short.post("k", "{}")
	short.want(a, http.StatusConflict, "result-expired")
	if a.problem.ResultRef != "ord_1" || a.problem.OperationState != "succeeded" {
		t.Errorf("%+v", a.problem)
	}
	short.wantRuns(1)
}

func TestExpiryComesBeforeTheHash(t *testing.T) {
	b := newEnv(t, setup{cfg: httpkey.Config{Retention: time.Millisecond}})
	b.post("k", `{"a":1}`)
	b.await("the record expires", func() bool { return b.post("k", `{"a":2}`).status == http.StatusOK })
}

// A store whose clock is one hour ahead gives the same answers.
func TestOnlyTheStoresClockCounts(t *testing.T) {
	g := newGate()
	b := newEnv(t, setup{run: g.ServeHTTP})
	ahead := b.twin(setup{})
	ahead.db.claim = func(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
		r, ok, err := ahead.db.Keys.ClaimKey(ctx, c)
		r.Now, r.LeaseUntil = r.Now.Add(time.Hour), r.LeaseUntil.Add(time.Hour)
		return r, ok, err
	}
	running := b.later("k", "{}")
	receive(t, g.reached)
	a := ahead.post("k", "{}")
	ahead.want(a, http.StatusConflict, "in-progress")
	if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 || n > 30 {
		t.Errorf("Retry-After: %s", a.header.Get("Retry-After"))
	}
	close(g.open)
	receive(t, running)
}

func TestCleaningLeavesWhatIsNotOver(t *testing.T) {
	g := newGate()
	b := newEnv(t, setup{cfg: httpkey.Config{Retention: time.Millisecond}, run: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Effect") != "" {
			httpkey.MarkEffect(r.Context())
			w.WriteHeader(500)
			return
		}
		if r.Header.Get("Hang") != "" {
			g.ServeHTTP(w, r)
		}
	}})
	b.post("u", "{}", with("Effect", "yes"))
	running := b.later("p", "{}", with("Hang", "yes"))
	receive(t, g.reached)
	b.post("k", "{}")
	b.await("the finished one is removed", func() bool {
		n, err := b.keys.Purge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	b.want(b.post("u", "{}"), http.StatusConflict, "outcome-uncertain")
	b.want(b.post("p", "{}"), http.StatusConflict, "in-progress")
	close(g.open)
	receive(t, running)
}
