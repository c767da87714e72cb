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

// producer holds a publishing client and replaces it after a fatal error.
type producer struct {
	make    func() (*kgo.Client, error)
	timeout time.Duration

	mu     sync.Mutex
	client *kgo.Client // nil until needed
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

// retire closes a client, which the next call replaces. When retire returns,
// the client sends nothing more.
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

// publish sends all records at once and waits for their results. It returns nil
// if all are confirmed, and otherwise one result per record.
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
	// The client cannot drop a record that it has sent without getting an
	// answer, because no other record may reuse its sequence number. Therefore
	// the client is closed when the time is over. Other records in flight on it
	// fail as well; the cluster is silent for them too, or the relay is
	// stopping.
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

// sort puts the results, which arrive in the cluster's order, into the order of
// the records. A client whose sequence numbers the cluster rejects is replaced.
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
			err = context.Cause(ctx) // the reason why the client was closed
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
