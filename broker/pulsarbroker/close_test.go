package pulsarbroker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// clientDouble records whether it was closed.
type clientDouble struct {
	pulsar.Client
	closed bool
}

func (c *clientDouble) Close() { c.closed = true }

// consumerDouble answers when the test lets it.
type consumerDouble struct {
	pulsar.Consumer
	answer chan struct{}
}

func (c consumerDouble) GetLastMessageIDs() ([]pulsar.TopicMessageID, error) {
	<-c.answer
	return nil, nil
}

// The client is closed when its calls have ended, or after their timeout.
func TestCloseWaitsForCalls(t *testing.T) {
	for name, c := range map[string]struct{ takes, want time.Duration }{
		"none under way":          {0, 0},
		"one that ends":           {3 * time.Second, 3 * time.Second},
		"one that is never ended": {time.Hour, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &clientDouble{}
				b := &Broker{cfg: Config{PublishTimeout: 10 * time.Second}, client: client, owned: true}
				if c.takes > 0 && !b.start(func() { <-time.After(c.takes) }) {
					t.Fatal("it was not started")
				}
				began := time.Now()
				if err := b.Close(); err != nil || !client.closed {
					t.Errorf("Close: %v; the client is closed: %v", err, client.closed)
				}
				if took := time.Since(began); took != c.want { // on the clock of the bubble
					t.Errorf("it took %v, want %v", took, c.want)
				}
				if b.start(func() {}) {
					t.Error("a broker that is closed starts calls")
				}
				<-time.After(c.takes)
			})
		})
	}
}

// The client never answers a request to a consumer that it is closing.
func TestAQuestionIsAnsweredBeforeTheConsumerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Broker{cfg: Config{PublishTimeout: 10 * time.Second}}
		answer := make(chan struct{})
		s := &session{Source: &Source{b: b}, consumer: consumerDouble{answer: answer}}
		ctx, end := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- s.alive(ctx) }()
		synctest.Wait()
		end() // end of the session
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("it was not waited for: %v", err)
		default:
		}
		close(answer)
		if err := <-returned; err != nil {
			t.Error(err)
		}
	})
}
