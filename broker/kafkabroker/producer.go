package kafkabroker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	errClosed = errors.New("kafkabroker: closed")
	errSilent = errors.New("kafkabroker: not confirmed in time")
)

// producer is a client for publishing, which is replaced by a new one when it is of no more use.
type producer struct {
	make    func() (*kgo.Client, error)
	timeout time.Duration

	mu     sync.Mutex
	client *kgo.Client // nil until it is needed
	closed bool
}

func (p *producer) current() (*kgo.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.client == nil {
		client, err := p.make()
		if err != nil {
			return nil, err
		}
		p.client = client
	}
	return p.client, nil
}

// retire closes a client, and lets another take its place. When it returns, nothing more is sent by the client.
func (p *producer) retire(client *kgo.Client) {
	p.mu.Lock()
	if p.client == client {
		p.client = nil
	}
	p.mu.Unlock()
	client.Close()
}

func (p *producer) close() {
	p.mu.Lock()
	client := p.client
	p.client, p.closed = nil, true
	p.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// publish sends records, all at once, and waits for what becomes of each. It returns nil if all are confirmed, and otherwise one result per record.
func (p *producer) publish(ctx context.Context, records []*kgo.Record) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, errSilent)
	defer cancel()
	client, err := p.current()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return all(len(records), err)
	}
	// The client does not let go of a record that it has sent and got no answer for: under the same number, nothing else could follow. So it is closed
	// when the time is over. What others have under way on it fails, too; the cluster is silent for them as well, or the relay stops.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		p.retire(client)
	})
	results := client.ProduceSync(ctx, records...)
	if !stop() {
		<-ended
	}
	if results.FirstErr() == nil {
		return nil
	}
	return p.sort(ctx, client, records, results)
}

// sort puts the results, which come as the cluster answers, into the order of the records. A client whose numbers the cluster no longer
// accepts is replaced.
func (p *producer) sort(ctx context.Context, client *kgo.Client, records []*kgo.Record, results kgo.ProduceResults) []error {
	places := make(map[*kgo.Record]int, len(records))
	for n, r := range records {
		places[r] = n
	}
	failed, broken := make([]error, len(records)), false
	for _, r := range results {
		err := r.Err
		broken = broken || isFatal(err)
		if ctx.Err() != nil && errors.Is(err, kgo.ErrClientClosed) {
			err = context.Cause(ctx) // that is why it was closed
		}
		failed[places[r.Record]] = err
	}
	if broken {
		p.retire(client)
	}
	return failed
}

func all(n int, err error) []error {
	failed := make([]error, n)
	for i := range failed {
		failed[i] = err
	}
	return failed
}
