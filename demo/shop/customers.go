package shop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// habit is the behavior of a customer with an order.
type habit int

const (
	once       habit = iota // retries until it has an answer
	again                   // repeats the request after the answer
	inParallel              // sends three concurrent requests
	unlucky                 // loses the first answer
)

// visit is an order of a customer.
type visit struct {
	key      string
	sku      string
	quantity int
	habit    habit
}

// customers place orders over HTTP.
type customers struct {
	url    string
	client *http.Client
	faults *faults
	log    *journal
	tally  *tally
	under  sync.WaitGroup // visits in progress
	places chan struct{}  // limits concurrent visits
}

// maxCustomers is the maximum number of concurrent customers. Without a limit,
// a slow machine would accumulate customers that wait for SQLite's only writer,
// and so delay the relay and the inventory.
const maxCustomers = 8

// visitor returns the next customer. Only random determines it, so the same
// seed gives the same customers.
func visitor(random *rand.Rand, seed uint64, n int) visit {
	v := visit{key: fmt.Sprintf("%d-%d", seed, n), sku: products[random.IntN(len(products))], quantity: 1 + random.IntN(3)}
	switch p := random.IntN(100); {
	case p < 10:
		v.habit = again
	case p < 15:
		v.habit = inParallel
	case p < 20:
		v.habit = unlucky
	}
	return v
}

// welcome starts a customer as soon as the limit permits it, and does not wait
// for the customer's end. The customer retries until it has an answer or ctx
// ends.
func (c *customers) welcome(ctx context.Context, v visit) {
	select {
	case c.places <- struct{}{}:
	case <-ctx.Done():
		return
	}
	c.under.Go(func() {
		defer func() { <-c.places }()
		switch v.habit {
		case once:
			c.insist(ctx, v, false)
		case again:
			c.insist(ctx, v, false)
			c.insist(ctx, v, false)
		case unlucky:
			c.insist(ctx, v, true)
		case inParallel:
			c.faults.note(keyInParallel)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { c.insist(ctx, v, false) })
			}
			all.Wait()
		}
	})
}

// insist sends requests until there is a final answer.
func (c *customers) insist(ctx context.Context, v visit, loseFirst bool) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		status, err := c.ask(ctx, v, loseFirst)
		if err == nil && status < 500 && status != http.StatusConflict || ctx.Err() != nil {
			return
		}
		loseFirst = false
		c.tally.asked.Add(1)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// ask sends a request and records the response.
func (c *customers) ask(ctx context.Context, v visit, loseAnswer bool) (int, error) {
	content, err := json.Marshal(map[string]any{"sku": v.sku, "quantity": v.quantity})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/orders", bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	req.GetBody = nil // net/http would retry a request with a key; here the customer does
	req.Header.Set("Idempotency-Key", `"`+v.key+`"`)
	if loseAnswer {
		req.Header.Set(loseHeader, "yes")
	}
	c.tally.requests.Add(1)
	res, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	var o struct {
		ID *string `json:"id"`
	}
	if res.StatusCode == http.StatusCreated {
		if err := json.Unmarshal(body, &o); err != nil {
			return 0, err
		}
	}
	c.log.write(`INSERT INTO answers (key, status, replayed, order_id, body) VALUES (?, ?, ?, ?, ?)`,
		v.key, res.StatusCode, res.Header.Get("Idempotent-Replayed") == "true", o.ID, string(body))
	return res.StatusCode, nil
}
