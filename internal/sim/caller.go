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
	no      int
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
	r := w.request(key)
	name := r.key
	req := idempotency.Request{Operation: "ASK", Key: name, Hash: hashOf(name)}
	var res idempotency.Result[string]
	var err error
	switch key % 3 {
	case 0:
		res, err = idempotency.DoTx(p.ctx, p.keys, req, func(ctx context.Context, tx Tx) (string, error) { return w.answer(ctx, p, r, tx) })
	case 1:
		res, err = idempotency.Do(p.ctx, p.keys, req, func(ctx context.Context) (string, error) {
			return idempotency.Phase(ctx, p.keys, "only", func(ctx context.Context, tx Tx) (string, error) { return w.answer(ctx, p, r, tx) })
		})
	default: // an effect outside the database
		res, err = idempotency.Do(p.ctx, p.keys, req, func(ctx context.Context) (string, error) { return w.perform(ctx, p, r) })
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
		if r.effects == 0 && key%3 < 2 {
			w.fail("keys", nil, "key %s is answered without its effect", name)
		}
	})
}

// standStill lets a run take longer than its lease: its process cannot reach
// the server, and the request is repeated elsewhere.
func (w *world) standStill(p *process, r *request, roll float64) {
	lease := w.plan.relay.Lease
	d := time.Duration(3 * roll * float64(lease))
	w.until(&p.cutOffUntil, d, callerSlow)
	other := w.nodes[(p.node.no+1)%len(w.nodes)]
	w.all.Go(func() {
		for range 3 {
			if w.sleep(context.Background(), lease/2+time.Millisecond) == nil {
				w.ask(other, r.no)
			}
		}
	})
	_ = p.sleep(context.Background(), d+time.Millisecond)
}

// hashOf returns the hash of a request.
func hashOf(name string) idempotency.Hash {
	h, err := idempotency.HashJSON(name)
	if err != nil {
		panic(err) // a string is JSON
	}
	return h
}

func (w *world) request(no int) *request {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.requests[no]
	if r == nil {
		r = &request{key: "k" + strconv.Itoa(no), no: no}
		w.requests[no] = r
	}
	return r
}

// perform is the operation behind a key. Its answer is one that no other run
// gives.
func (w *world) perform(ctx context.Context, p *process, r *request) (string, error) {
	var run int
	w.lock(func(*world) {
		r.runs++
		run = r.runs
	})
	if err := p.sleep(ctx, time.Duration(w.roll("operation", r.no, run)*float64(w.plan.sinkLatency))+1); err != nil {
		return "", err
	}
	if w.happens(callerSlow, r.no, run) {
		w.standStill(p, r, w.roll("slow", r.no, run))
	}
	if w.happens(callerDies, r.no, run) {
		p.crash("in a request")
		return "", errCrashed
	}
	return r.key + " run " + strconv.Itoa(run), nil
}

// answer performs the operation with an effect in a transaction.
func (w *world) answer(ctx context.Context, p *process, r *request, tx Tx) (string, error) {
	text, err := w.perform(ctx, p, r)
	x := w.server.sessionOf(tx)
	if err == nil && x == nil {
		err = errLost
	}
	if err != nil {
		return "", err
	}
	w.lock(func(*world) {
		x.effects = append(x.effects, func() {
			w.note(p, "key effect", nil, 0, 0, text)
			w.tally.effects.Add(1)
			r.effects++
			if r.effects > 1 {
				w.fail("keys", nil, "key %s has %d effects", r.key, r.effects)
			}
		})
	})
	return text, nil
}
