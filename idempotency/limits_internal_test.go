package idempotency

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A refusal as in progress has a retry delay: zero would be a busy loop.
func TestInProgressHasADelay(t *testing.T) {
	e := &entry[int]{k: &core[int]{}, req: Request{Operation: "o", Key: "k"}}
	for left, want := range map[time.Duration]time.Duration{
		-time.Second: 200 * time.Millisecond, 0: 200 * time.Millisecond, 199 * time.Millisecond: 200 * time.Millisecond, time.Second: time.Second,
	} {
		var in *InProgressError
		if err := e.inProgress(left); !errors.As(err, &in) || in.RetryAfter != want {
			t.Errorf("with %v left: %v, want %v", left, err, want)
		}
	}
}

// Recording after the caller has gone has its own timeout of ten seconds.
func TestDetachedWorkIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		ctx, end := detach(gone)
		defer end()
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestLimitsOfARequest(t *testing.T) {
	hash, err := HashJSON("x")
	if err != nil {
		t.Fatal(err)
	}
	text := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		tenant, operation, key int
		ok                     bool
	}{{64, 128, 255, true}, {0, 1, 1, true}, {65, 1, 1, false}, {0, 129, 1, false}, {0, 1, 256, false}, {0, 0, 1, false}, {0, 1, 0, false}} {
		r := Request{TenantID: text(c.tenant), Operation: text(c.operation), Key: text(c.key), Hash: hash}
		if err := r.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// An answer of MaxResult bytes is stored; one byte more, and it is lost.
func TestLimitsOfAnAnswer(t *testing.T) {
	e := &entry[int]{k: &core[int]{cfg: Config{MaxResult: 10, Retention: time.Hour}}}
	for n, lost := range map[int]bool{0: false, 9: false, 10: false, 11: true} {
		out := e.final(t.Context(), &Answer{Body: make([]byte, n), ContentType: "t"}, "")
		if out.Lost != lost || len(out.Result) != n && !lost || lost && (out.Result != nil || out.ContentType != "") {
			t.Errorf("%d bytes: %+v", n, out)
		}
	}
	for retention, want := range map[time.Duration]time.Duration{0: 0, time.Minute: time.Minute, time.Hour: 0, 2 * time.Hour: 0} {
		e.k.cfg.ResultRetention = retention
		if out := e.final(t.Context(), &Answer{}, ""); out.ResultRetention != want || out.Retention != time.Hour {
			t.Errorf("ResultRetention %v: %+v", retention, out)
		}
	}
}

// The defaults are those of the documentation; a negative value stays.
func TestDefaults(t *testing.T) {
	got := Config{}.withDefaults()
	got.Logger = nil
	want := Config{
		Retention: 24 * time.Hour, Lease: 30 * time.Second, MaxExecution: 15 * time.Minute, MaxResult: 1 << 20,
		PurgeInterval: time.Hour, PurgeBatchSize: 500, CountInterval: 30 * time.Second,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	off := Config{MaxExecution: -1, MaxResult: -1, PurgeInterval: -1, CountInterval: -1}.withDefaults()
	if off.MaxExecution != -1 || off.MaxResult != -1 || off.PurgeInterval != -1 || off.CountInterval != -1 {
		t.Errorf("negative values became %+v", off)
	}
}
