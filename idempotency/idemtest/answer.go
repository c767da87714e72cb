package idemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
)

func answerChecks[T any]() []check[T] {
	return []check[T]{
		{name: "same_hash_replays", run: sameHashReplays[T]},
		{name: "byte_for_byte", run: byteForByte[T]},
		{name: "other_hash_conflicts_in_every_state", run: otherHashConflicts[T]},
		{name: "expired_runs_again_whatever_the_hash", run: expiredRunsAgain[T]},
		{name: "parallel_requests_run_once", run: parallelRunsOnce[T]},
		{name: "waiting_returns_the_answer", run: waitingReturnsTheAnswer[T]},
		{name: "tenant_and_operation_separate", run: separate[T]},
		{name: "keys_compare_as_bytes", run: asBytes[T]},
		{name: "too_large_is_a_tombstone", run: tooLarge[T]},
		{name: "an_answer_has_its_own_ttl", run: answerExpires[T]},
		{name: "purge_removes_only_expired_records", run: purging[T]},
	}
}

func sameHashReplays[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		calls := 0
		first, err := do(context.Background(), b.keys, req, making(&calls, "O-1"))
		if err != nil || first.Replayed || first.Value.ID != "O-1" || first.Ref != "O-1" || first.Unkept != nil {
			b.Fatalf("the first: %+v, %v", first, err)
		}
		for range 3 {
			// Another process, and the other function, get the same.
			for other, again := range b.ways() {
				res, err := again(context.Background(), b.open(b.db, idempotency.Config{}), req, never[order](b))
				if err != nil || !res.Replayed || res.Value != first.Value || res.Ref != "O-1" {
					b.Errorf("again with %s: %+v, %v", other, res, err)
				}
			}
		}
		rec := b.wantState(req, store.KeySucceeded)
		if calls != 1 || rec.Attempts != 1 || rec.Fence != 1 || rec.ExpiresAt.Sub(rec.CompletedAt).Round(time.Minute) != 24*time.Hour {
			b.Errorf("%d calls, record %+v", calls, rec)
		}
	})
}

func byteForByte[T any](b *env[T]) {
	body := []byte("\x00\xff{ \"a\" : 1e2 }\r\n\u00e9 '\";--")
	for _, want := range []idempotency.Answer{
		{Body: body, ContentType: "application/vnd.x+json; charset=\"utf-8\"", Ref: "Ö-1"},
		{Body: bytes.Repeat(body, 20_000), ContentType: "a/b"},
		{},
	} {
		for _, tx := range []bool{false, true} {
			req := request(fmt.Sprint(len(want.Body), tx))
			do := func() (idempotency.Reply, error) {
				if tx {
					return b.keys.DoBytesTx(context.Background(), req, func(context.Context, T) (idempotency.Answer, error) { return want, nil })
				}
				return b.keys.DoBytes(context.Background(), req, func(context.Context) (idempotency.Answer, error) { return want, nil })
			}
			for i := range 2 {
				got, err := do()
				if err != nil || got.Replayed != (i > 0) || !bytes.Equal(got.Body, want.Body) || got.ContentType != want.ContentType || got.Ref != want.Ref {
					b.Errorf("%d bytes, replayed %v: %v", len(want.Body), got.Replayed, err)
				}
			}
		}
	}
}

func otherHashConflicts[T any](b *env[T]) {
	for state, arrange := range map[string]func(req idempotency.Request){
		"succeeded": func(req idempotency.Request) {
			if _, err := idempotency.Do(context.Background(), b.keys, req, making(new(int), "O")); err != nil {
				b.Fatal(err)
			}
		},
		"failed": func(req idempotency.Request) {
			_, err := idempotency.Do(context.Background(), b.keys, req, func(context.Context) (order, error) { return order{}, errBoom })
			if !errors.Is(err, errBoom) {
				b.Fatal(err)
			}
		},
		"uncertain": func(req idempotency.Request) {
			_, _ = idempotency.Do(context.Background(), b.keys, req, func(ctx context.Context) (order, error) {
				idempotency.MarkEffect(ctx)
				return order{}, errBoom
			})
		},
		"in progress": func(req idempotency.Request) { b.dead(req, time.Hour) },
		"lapsed": func(req idempotency.Request) {
			b.dead(req, time.Millisecond)
			b.until("the lease has run out", func() bool { rec := b.record(req); return !rec.LeaseUntil.After(rec.Now) })
		},
	} {
		req := request(state + " secret")
		arrange(req)
		before := b.record(req)
		other := req
		other.Hash = hash("three apples")
		for way, do := range b.ways() {
			_, err := do(context.Background(), b.keys, other, never[order](b))
			if !errors.Is(err, waybill.ErrConflict) {
				b.Errorf("%s, %s: %v", state, way, err)
			}
			b.wantSecret(err, req.Key)
		}
		after := b.record(req)
		after.Now = before.Now
		if fmt.Sprint(after) != fmt.Sprint(before) {
			b.Errorf("%s: the record was %+v and is %+v", state, before, after)
		}
	}
}

func expiredRunsAgain[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		req.Retention = time.Millisecond
		calls := 0
		for i := range 3 {
			req.Hash = hash(fmt.Sprint(i))
			res, err := do(context.Background(), b.keys, req, making(&calls, "O"))
			if err != nil || res.Replayed || res.Value.Total != 101+i {
				b.Errorf("run %d: %+v, %v", i, res, err)
			}
			b.expired(req)
		}
	})
}

const crowd = 100

func parallelRunsOnce[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		// Two processes, so that the store decides, too.
		processes := []*idempotency.Keys[T]{b.keys, b.open(b.db, idempotency.Config{})}
		if way == "DoTx" && !b.features.LateCommits {
			// A transaction of another process would wait for this one to end.
			processes[1] = b.keys
		}
		req := request(way)
		var calls atomic.Int64
		enough := make(chan struct{})
		var refused atomic.Int64
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				res, err := do(context.Background(), processes[i%2], req, func(context.Context) (order, error) {
					calls.Add(1)
					select {
					case <-enough: // all the others have been refused
					case <-time.After(20 * time.Second):
					}
					return order{ID: "O-1"}, nil
				})
				var in *idempotency.InProgressError
				switch {
				case err == nil && !res.Replayed && res.Value.ID == "O-1":
				case errors.As(err, &in) && errors.Is(err, waybill.ErrInProgress) && in.RetryAfter > 0:
					if refused.Add(1) == crowd-1 {
						close(enough)
					}
				default:
					b.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
		if calls.Load() != 1 || refused.Load() != crowd-1 {
			b.Errorf("%d calls, %d refused as in progress", calls.Load(), refused.Load())
		}
		if res, err := do(context.Background(), b.keys, req, never[order](b)); err != nil || !res.Replayed || res.Value.ID != "O-1" {
			b.Errorf("afterwards: %+v, %v", res, err)
		}
	})
}

func waitingReturnsTheAnswer[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		processes := []*idempotency.Keys[T]{b.keys, b.open(b.db, idempotency.Config{})}
		req := request(way)
		req.WaitMax = time.Minute
		var calls, fresh atomic.Int64
		var all sync.WaitGroup
		for i := range crowd {
			all.Go(func() {
				res, err := do(context.Background(), processes[i%2], req, func(context.Context) (order, error) {
					// The first run fails; one of the waiting requests tries
					// again.
					if n := calls.Add(1); n < 2 {
						return order{}, errBoom
					}
					return order{ID: "O-1", Total: 7}, nil
				})
				if !res.Replayed {
					fresh.Add(1)
				}
				if err == nil && res.Value != (order{ID: "O-1", Total: 7}) || err != nil && !errors.Is(err, errBoom) {
					b.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
		if calls.Load() != 2 || fresh.Load() != 2 {
			b.Errorf("%d calls and %d fresh answers, want 2 and 2", calls.Load(), fresh.Load())
		}
		// WaitMax has passed.
		late := request(way + " dead")
		late.WaitMax = 20 * time.Millisecond
		b.dead(late, time.Hour)
		_, err := do(context.Background(), b.keys, late, never[order](b))
		if !errors.Is(err, waybill.ErrInProgress) {
			b.Errorf("after WaitMax: %v", err)
		}
	})
}

func separate[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		calls := 0
		for _, req := range []idempotency.Request{
			{TenantID: "", Operation: "A" + way, Key: "k"},
			{TenantID: "acme", Operation: "A" + way, Key: "k"},
			{TenantID: "acme", Operation: "B" + way, Key: "k"},
			{TenantID: "other", Operation: "A" + way, Key: "k"},
			{TenantID: "othe", Operation: "rA" + way, Key: "k"},
			{TenantID: strings.Repeat("t", 64), Operation: strings.Repeat("o", 128-len(way)) + way, Key: strings.Repeat("k", 255)},
		} {
			req.Hash = hash(fmt.Sprint(calls)) // each has another hash
			before := calls
			if res, err := do(context.Background(), b.keys, req, making(&calls, "O")); err != nil || res.Replayed || calls != before+1 {
				b.Errorf("%+v: %+v, %v", req, res, err)
			}
		}
	})
}

func asBytes[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		calls := 0
		// A collation would treat some of these as equal: case, trailing
		// spaces, composed and decomposed accents, a sharp s, a wild card.
		names := []string{"abc", "ABC", "Abc", "abc ", "abc  ", " abc", "\u00e9", "e\u0301", "e", "straße", "strasse", "%", "_", `\`, `'`, "\t", "\u200b", "0", "00", "🗝"}
		for _, field := range []string{"key", "operation", "tenant"} {
			for i, name := range names {
				req := idempotency.Request{TenantID: "t" + field, Operation: "o" + way, Key: "k", Hash: hash(fmt.Sprint(i))}
				switch field {
				case "key":
					req.Key = name
				case "operation":
					req.Operation = way + name
				case "tenant":
					req.TenantID = name
				}
				before := calls
				if res, err := do(context.Background(), b.keys, req, making(&calls, "O")); err != nil || res.Replayed || calls != before+1 {
					b.Errorf("%s %q: %+v, %v", field, name, res, err)
				}
			}
		}
	})
}

func tooLarge[T any](b *env[T]) {
	keys := b.open(b.db, idempotency.Config{MaxResult: 100})
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		note := strings.Repeat("x", 200)
		res, err := do(context.Background(), keys, req, func(context.Context) (order, error) { return order{ID: "O-9", Note: note}, nil })
		if err != nil || res.Value.Note != note || res.Replayed {
			b.Fatalf("the first: %+v, %v", res, err)
		}
		for other, again := range b.ways() {
			_, err := again(context.Background(), keys, req, never[order](b))
			var gone *idempotency.NoResultError
			if !errors.As(err, &gone) || gone.Ref != "O-9" || gone.Expired || !errors.Is(err, idempotency.ErrResultUnavailable) {
				b.Errorf("again with %s: %v", other, err)
			}
		}
		if rec := b.record(req); !rec.Lost || len(rec.Result) > 0 || rec.Ref != "O-9" {
			b.Errorf("the record is %+v", rec)
		}
	})
}

func answerExpires[T any](b *env[T]) {
	keys := b.open(b.db, idempotency.Config{ResultRetention: time.Millisecond})
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		if _, err := do(context.Background(), keys, req, making(new(int), "O-3")); err != nil {
			b.Fatal(err)
		}
		b.until("the answer has expired", func() bool { return b.record(req).ResultExpired })
		for range 2 {
			_, err := do(context.Background(), keys, req, never[order](b))
			var gone *idempotency.NoResultError
			if !errors.As(err, &gone) || gone.Ref != "O-3" || !gone.Expired || !errors.Is(err, idempotency.ErrResultExpired) {
				b.Errorf("again: %v", err)
			}
			// The same after the answer is purged.
			if _, err := keys.Purge(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func purging[T any](b *env[T]) {
	keys := b.open(b.db, idempotency.Config{PurgeBatchSize: 3})
	short := func(key string) idempotency.Request {
		req := request(key)
		req.Retention = time.Millisecond
		return req
	}
	for i := range 10 {
		if _, err := idempotency.Do(context.Background(), keys, short(fmt.Sprint(i)), making(new(int), "O")); err != nil {
			b.Fatal(err)
		}
	}
	stays := []idempotency.Request{request("kept"), short("uncertain"), short("in progress"), short("lapsed")}
	if _, err := idempotency.Do(context.Background(), keys, stays[0], making(new(int), "O")); err != nil {
		b.Fatal(err)
	}
	_, _ = idempotency.Do(context.Background(), keys, stays[1], func(ctx context.Context) (order, error) {
		idempotency.MarkEffect(ctx)
		return order{}, errBoom
	})
	b.dead(stays[2], time.Hour)
	b.dead(stays[3], time.Millisecond)
	b.expired(short("9"))
	if n, err := keys.Purge(context.Background()); err != nil || n != 10 {
		b.Errorf("%d were removed, want 10: %v", n, err)
	}
	if n, err := keys.Purge(context.Background()); err != nil || n != 0 {
		b.Errorf("%d more were removed: %v", n, err)
	}
	for _, req := range stays {
		b.record(req)
	}
}
