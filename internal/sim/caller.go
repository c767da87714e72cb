package sim

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store/driver"
)

// request is the model of an idempotency key.
type request struct {
	key     string
	answer  string // the first answer that a caller got
	effects int    // committed effects
	runs    int
}

// newKeys returns the idempotency keys of a process.
func (p *process) newKeys(roles driver.Roles[Tx]) (*idempotency.Keys[Tx], error) {
	return idempotency.New(roles, idempotency.Config{Lease: p.w.plan.relay.Lease, Logger: slog.New(slog.DiscardHandler)})
}

// call runs a caller: requests with keys, repeated together and after a long
// time.
func (w *world) call(n *node, caller int) {
	s := w.stream("caller", n.no, caller)
	gap := w.plan.storm / time.Duration(w.plan.keys+1)
	for i := 0; i < w.plan.keys && w.stormy.Load() && !w.over(); i++ {
		if w.sleep(context.Background(), s.between(0, gap)) != nil {
			return
		}
		key := i
		if i > 0 && w.draw(s, callerRepeats) {
			key = s.n(i)
		}
		w.ask(n, key)
		for w.draw(s, callerTogether) {
			w.all.Go(func() { w.ask(n, key) })
		}
	}
}

// ask makes one request on whatever process runs on the node.
func (w *world) ask(n *node, key int) {
	w.mu.Lock()
	p := n.proc
	w.mu.Unlock()
	if p == nil || p.isDead() {
		return
	}
	name := "k" + strconv.Itoa(key)
	r := w.request(name)
	req := idempotency.Request{Operation: "ASK", Key: name, Hash: hashOf(name)}
	var res idempotency.Result[string]
	var err error
	if key%2 == 0 {
		res, err = idempotency.DoTx(p.ctx, p.keys, req, func(ctx context.Context, tx Tx) (string, error) { return w.answer(ctx, p, r, tx) })
	} else {
		res, err = idempotency.Do(p.ctx, p.keys, req, func(ctx context.Context) (string, error) {
			return idempotency.Phase(ctx, p.keys, "only", func(ctx context.Context, tx Tx) (string, error) { return w.answer(ctx, p, r, tx) })
		})
	}
	w.lock(func(*world) {
		if err != nil || res.Unkept != nil || p.dead {
			if errors.Is(err, waybill.ErrConflict) {
				w.fail("keys", nil, "key %s: %v", name, err)
			}
			return
		}
		w.tally.answers.Add(1)
		w.note(p, "answer", nil, int64(key), 0, res.Value)
		if r.answer == "" {
			r.answer = res.Value
		}
		if r.answer != res.Value {
			w.fail("keys", nil, "key %s has the answers %s and %s", name, r.answer, res.Value)
		}
		if r.effects == 0 {
			w.fail("keys", nil, "key %s is answered without its effect", name)
		}
	})
}

// hashOf returns the hash of a request.
func hashOf(name string) idempotency.Hash {
	h, err := idempotency.HashJSON(name)
	if err != nil {
		panic(err) // a string is JSON
	}
	return h
}

func (w *world) request(name string) *request {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.requests[name]
	if r == nil {
		r = &request{key: name}
		w.requests[name] = r
	}
	return r
}

// answer is the operation behind a key: an effect in the transaction, and an
// answer that no other run gives.
func (w *world) answer(ctx context.Context, p *process, r *request, tx Tx) (string, error) {
	var run int
	w.lock(func(*world) {
		r.runs++
		run = r.runs
	})
	no := int(mix(r.key)) & 0xffff
	if err := p.sleep(ctx, time.Duration(w.roll("operation", no, run)*float64(w.plan.sinkLatency))+1); err != nil {
		return "", err
	}
	if w.happens(callerSlow, no, run) {
		_ = p.sleep(context.Background(), time.Duration(w.roll("slow", no, run)*3*float64(w.plan.relay.Lease)))
	}
	if w.happens(callerDies, no, run) {
		p.crash("in a request")
		return "", errCrashed
	}
	x := w.server.sessionOf(tx)
	if x == nil {
		return "", errLost
	}
	w.lock(func(*world) {
		x.effects = append(x.effects, func() {
			w.note(p, "key effect", nil, int64(run), 0, r.key)
			w.tally.effects.Add(1)
			r.effects++
			if r.effects > 1 {
				w.fail("keys", nil, "key %s has %d effects", r.key, r.effects)
			}
		})
	})
	return r.key + " run " + strconv.Itoa(run), nil
}
