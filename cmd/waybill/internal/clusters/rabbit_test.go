//go:build unix

package clusters_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybillhq/waybill/broker/rabbitbroker"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// TestRabbitKilled: the leader of a quorum queue is killed. Every promise is
// kept.
func TestRabbitKilled(t *testing.T) {
	failures(t)
	runRabbit(t, false)
}

// TestRabbitFrozen: the leader of a quorum queue hangs until the others do the
// work, and continues beside them until it is restarted. Every promise is kept.
func TestRabbitFrozen(t *testing.T) {
	failures(t)
	runRabbit(t, true)
}

func runRabbit(t *testing.T, frozen bool) {
	t.Helper()
	r := &rabbitCluster{brokers: brokers{Cluster: private.RabbitCluster(t, 3), frozen: frozen}}
	r.leader, r.publish = r.leads, r.published
	if frozen {
		r.rejoin = r.restartHung
	}
	var hosts []string
	for _, s := range r.Servers {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", s.Port))
	}
	r.url = "amqp://guest:guest@" + strings.Join(hosts, ",") + "/"
	runBrokers(t, &r.brokers, r.url)
}

// rabbitCluster is a cluster of RabbitMQ servers.
type rabbitCluster struct {
	brokers
	url   string
	queue string // a queue that no consumer of the soak takes
}

// leads returns the leader of one of the soak's queues. It leads a queue of the
// test, too. The statistics of a node that has just started lack the
// leaders.
func (r *rabbitCluster) leads(ctx context.Context, turn int) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	err = until(ctx, func(ctx context.Context) bool {
		name, last = r.leadsNow(ctx, turn)
		return last == nil
	})
	if err := errors.Join(err, last); err != nil {
		return "", err
	}
	return name, r.declare(ctx, name, turn)
}

func (r *rabbitCluster) leadsNow(ctx context.Context, turn int) (string, error) {
	queues, err := manage.RabbitQueues(ctx, r.Servers[0])
	if err != nil {
		return "", err
	}
	var leaders []string
	for _, q := range queues {
		if !strings.HasPrefix(q.Name, "soak_") || strings.HasSuffix(q.Name, ".dead") {
			continue
		}
		if q.Type != "quorum" || len(q.Members) != len(r.Servers) || q.Leader == "" {
			return "", fmt.Errorf("%+v is not a replicated queue with a leader", q)
		}
		leaders = append(leaders, q.Leader)
	}
	if len(leaders) == 0 {
		return "", errors.New("the soak has no queue")
	}
	return leaders[turn%len(leaders)], nil
}

// declare makes a server the leader of a new queue. RabbitMQ 3.10 does not
// start a replica whose queue was deleted and declared again.
func (r *rabbitCluster) declare(ctx context.Context, name string, turn int) error {
	i := slices.IndexFunc(r.Servers, func(s manage.Server) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("no server is called %q", name)
	}
	r.queue = fmt.Sprintf("served-%d", turn)
	err := r.on(ctx, r.Servers[i].DSN, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(r.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return err
	})
	if err != nil {
		return err
	}
	// A queue that was just declared may be lost with its node.
	return until(ctx, func(ctx context.Context) bool { return r.published(ctx) == nil })
}

// restartHung continues a node that hung, and restarts it after a while: Mnesia
// does not join the others again by itself.
func (r *rabbitCluster) restartHung(ctx context.Context, i int) error {
	if err := r.Servers[i].Thaw(ctx); err != nil {
		return err
	}
	if err := arrive(ctx, &r.brokers); err != nil {
		return err
	}
	if err := r.Servers[i].Kill(ctx); err != nil {
		return err
	}
	return r.Restart(ctx, i)
}

// on calls f with a channel of a new connection.
func (r *rabbitCluster) on(ctx context.Context, url string, f func(ch *amqp.Channel) error) error {
	dial, err := rabbitbroker.Dialer(url)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, amqp.Config{Dial: amqp.DefaultDial(time.Second)})
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second)) //nolint:errcheck // its server may hang
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// published publishes a message, and has it confirmed.
func (r *rabbitCluster) published(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	return r.on(ctx, r.url, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", r.queue, true, false, amqp.Publishing{})
		if err != nil {
			return err
		}
		if acked, err := confirmed.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("not confirmed: %w", err)
		}
		return nil
	})
}
