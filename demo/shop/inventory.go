package shop

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/webhook"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// ready is what the process of an inventory prints when it accepts requests.
const ready = "ready"

// groupOptions are the options of the inventory's group.
var groupOptions = inbox.Options{BackoffBase: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond, Lease: 2 * time.Second}

// Inventory is the whole program in a process that [Webhooks] has started, and
// reports whether this is one. A main function that runs the demo calls it
// first.
func Inventory() bool {
	text, ok := os.LookupEnv(inventoryVariable)
	if !ok {
		return false
	}
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return true
}

// run runs the inventory. It ends by a kill, or with the shop.
func (s settings) run(ctx context.Context) error {
	signal.Ignore(os.Interrupt) // a terminal sends it to all processes; the shop still needs this one
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end() // the shop has ended
	}()
	store, err := sqlitestore.Open(s.Database, sqlitestore.Config{})
	if err != nil {
		return err
	}
	shop := &clerk{url: s.Desk, client: &http.Client{Timeout: 30 * time.Second}}
	in, err := inbox.New(store, inbox.Config{Observe: shop.hooks(), Logger: silent})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	consumer, err := in.Group(group, groupOptions)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	inbox.On(consumer, OrderPlaced, shop.reserve)
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	source, err := webhook.NewSource(socket, webhook.ReceiverConfig{Secrets: []string{s.Secret}, Logger: silent})
	if err == nil {
		_, err = io.WriteString(os.Stdout, ready)
	}
	if err == nil {
		err = source.Run(ctx, telling{consumer, shop})
	}
	return errors.Join(err, store.Close())
}

// clerk asks the shop and reports to it.
type clerk struct {
	url    string
	client *http.Client
}

func (c *clerk) moment(ctx context.Context, what moment) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+string(what), nil)
	if err != nil {
		return proceed, err
	}
	res, err := c.client.Do(req)
	if err != nil {
		return proceed, err
	}
	text, err := io.ReadAll(res.Body)
	return answer(text), errors.Join(err, res.Body.Close())
}

// hooks report what the screen of the shop counts.
func (c *clerk) hooks() observe.Hooks {
	report := func(what moment) { _, _ = c.moment(context.Background(), what) } // the shop ends
	return observe.Hooks{
		Consumed: func(info observe.ConsumedInfo) {
			if info.Replayed {
				report(replayed)
			}
		},
		ConsumeFailed: func(observe.ConsumeFailedInfo) { report(missed) },
	}
}

// reserve is the handler of the inventory.
func (c *clerk) reserve(ctx context.Context, tx *sql.Tx, ev waybill.Event, p Placed) error {
	if err := apply(ctx, tx, ev, p); err != nil {
		return err
	}
	what, err := c.moment(ctx, written)
	switch {
	case err != nil:
		return err
	case what == fails:
		return errInjected
	case what == panics:
		panic(errInjected)
	}
	return nil
}

// telling tells the shop of commits before the relay learns of them.
type telling struct {
	to   waybill.Sink
	shop *clerk
}

// Deliver implements [waybill.Sink].
func (t telling) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := t.to.Deliver(ctx, batch)
	for i, err := range results {
		if err == nil {
			_, results[i] = t.shop.moment(ctx, committed)
		}
	}
	return results
}
