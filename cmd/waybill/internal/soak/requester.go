package soak

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/outbox"
)

// operation is the operation of all requests.
const operation = "SOAK"

// receipt is the answer of a request. Its number is random, so that a second
// execution has another answer.
type receipt struct {
	Number int64 `json:"number"`
}

// client repeats requests.
type client struct {
	*child
	keys *idempotency.Keys[*sql.Tx]
	box  *outbox.Outbox[*sql.Tx]
	mu   sync.Mutex // of the random numbers
}

// request makes requests until ctx ends. All requesters use the same keys, and
// each makes every request twice at the same time and once more later.
func (c *child) request(ctx context.Context) error {
	keys, err := idempotency.New(c.store.InSQL, idempotency.Config{Lease: c.Lease, Logger: c.log})
	if err != nil {
		return err
	}
	box, err := outbox.New(c.store.InSQL, outbox.Config{Logger: c.log})
	if err != nil {
		return err
	}
	r := &client{child: c, keys: keys, box: box}
	for n := c.First; ctx.Err() == nil; n++ {
		var both sync.WaitGroup
		both.Go(func() { r.ask(ctx, n) })
		both.Go(func() { r.ask(ctx, n) })
		both.Wait()
		if n > 2 {
			r.ask(ctx, n-2)
		}
		pause(ctx, time.Duration(float64(time.Second)/c.Rate))
	}
	return nil
}

// attempts is how often a request without an answer is repeated.
const attempts = 4

// ask makes a request, and notes its answer.
func (r *client) ask(ctx context.Context, n int) {
	ctx = context.WithoutCancel(ctx)
	key := "k" + strconv.Itoa(n)
	for range attempts {
		res, err := r.do(ctx, key)
		if err == nil {
			r.place("after an answer")
			r.out.note(note{Kind: noteAsk, Text: key, Value: res.Value.Number})
			r.spoilKey(ctx, key, n)
			return
		}
		if !errors.Is(err, waybill.ErrInProgress) {
			r.out.failed("request", err)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// do runs a request in one transaction with its key.
func (r *client) do(ctx context.Context, key string) (idempotency.Result[receipt], error) {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	hash, err := idempotency.HashJSON(key)
	if err != nil {
		return idempotency.Result[receipt]{}, err
	}
	req := idempotency.Request{Operation: operation, Key: key, Hash: hash, WaitMax: 5 * time.Second}
	return idempotency.DoTx(ctx, r.keys, req, func(ctx context.Context, tx *sql.Tx) (receipt, error) {
		r.mu.Lock()
		answer := receipt{1 + r.random.Int64N(1<<53)}
		ev, e := r.draft(unordered, 0)
		r.mu.Unlock()
		ev.Type = bought
		if err := r.effect(ctx, tx, key, answer.Number); err != nil {
			return answer, err
		}
		r.place("in a request")
		if err := r.box.Write(ctx, tx, ev); err != nil {
			return answer, err
		}
		if err := r.names.record(ctx, tx, []entry{e}); err != nil {
			return answer, err
		}
		r.place("in a request, before the commit")
		return answer, nil
	})
}

// effect is the effect of a request.
func (r *client) effect(ctx context.Context, tx *sql.Tx, key string, answer int64) error {
	_, err := tx.ExecContext(ctx, r.names.fill(`INSERT INTO {request} (name, answer) VALUES (?, ?)`), key, answer)
	return err
}

// spoilKey loses the record of a key, or changes its answer.
func (r *client) spoilKey(ctx context.Context, key string, n int) {
	if n%5 != 0 || r.Sabotage != SecondEffect && r.Sabotage != OtherAnswer {
		return
	}
	column := "key"
	if r.store.Kind == connect.MySQL {
		column = "idem_key"
	}
	var err error
	if r.Sabotage == SecondEffect {
		_, err = r.store.SQL.ExecContext(ctx, r.names.fill(`DELETE FROM {idempotency} WHERE operation = ? AND `+column+` = ?`), r.bytes(operation), r.bytes(key))
	} else {
		_, err = r.store.SQL.ExecContext(ctx, r.names.fill(`UPDATE {idempotency} SET result = ? WHERE operation = ? AND `+column+` = ?`),
			[]byte(`{"number":1}`), r.bytes(operation), r.bytes(key))
	}
	if err != nil {
		r.out.failed("sabotage", err)
		return
	}
	r.spoiledKey(key)
}

// bytes returns a text as the database compares it.
func (r *client) bytes(text string) any {
	if r.store.Kind == connect.Postgres {
		return []byte(text)
	}
	return text
}
