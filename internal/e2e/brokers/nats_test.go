//go:build linux || darwin

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/relay"
)

func natsStand() stand {
	start := func(t testing.TB) (victim, string) {
		t.Helper()
		s := &natsServer{dir: t.TempDir(), port: ownPort(t)}
		must(t, s.Restart(t.Context()))
		t.Cleanup(func() { must(t, s.Kill(context.WithoutCancel(t.Context()))) })
		return s, s.url()
	}
	return stand{
		name: "nats", timeout: time.Second,
		start: func(t *testing.T) (victim, string) { return start(t) },
		shared: func(t testing.TB) string {
			t.Helper()
			_, address := start(t)
			return address
		},
		place: func(_ *testing.T, address string, _ victim) place {
			return natsPlace{address, "s" + waybill.NewID().String()}
		},
	}
}

// natsVariable makes the test binary a NATS server: it holds the port and the
// folder. Only a process of its own can be killed.
const natsVariable = "WAYBILL_BROKERS_NATS"

func serveNATS(text string) error {
	port, dir, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	if _, err := natsembed.Start(context.Background(), natsembed.Config{Dir: dir, Port: n, User: "test", Password: "test"}); err != nil {
		return err
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // ends with its parent
	return nil
}

// natsServer is a server in a process of its own.
type natsServer struct {
	dir  string
	port int
	cmd  *exec.Cmd
}

func (s *natsServer) url() string { return "nats://test:test@127.0.0.1:" + strconv.Itoa(s.port) }

// Restart implements victim. It returns when the server accepts connections.
func (s *natsServer) Restart(ctx context.Context) error {
	cmd := exec.Command(os.Args[0]) //nolint:noctx // it is ended by a signal
	cmd.Env = append(os.Environ(), natsVariable+"="+strconv.Itoa(s.port)+" "+s.dir)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	for deadline := time.Now().Add(patience); ; {
		conn, err := nats.Connect(s.url())
		if err == nil {
			conn.Close()
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the NATS server does not come up: %w", err)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// Kill implements victim.
func (s *natsServer) Kill(context.Context) error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // reports the kill
	s.cmd = nil
	return err
}

// Freeze implements victim.
func (s *natsServer) Freeze(context.Context) error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw implements victim.
func (s *natsServer) Thaw(context.Context) error { return s.cmd.Process.Signal(syscall.SIGCONT) }

type natsPlace struct{ address, stream string }

func (p natsPlace) topic() string { return p.stream + ".changed" }

func (p natsPlace) open(ctx context.Context, address string) (*natsbroker.Broker, error) {
	return natsbroker.Open(ctx, address, natsbroker.Config{Stream: p.stream, Create: true, Subjects: []string{p.stream + ".>"}, PublishTimeout: time.Second})
}

func (p natsPlace) sink(ctx context.Context, via *proxy) (relay.DestinationSink, func(), error) {
	b, err := p.open(ctx, via.instead(p.address))
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Sink(natsbroker.SinkConfig{})
	return s, func() { _ = b.Close() }, err
}

func (p natsPlace) source(ctx context.Context, cfg broker.ReceiverConfig) (broker.Source, func(), error) {
	b, err := p.open(ctx, p.address)
	if err != nil {
		return nil, nil, err
	}
	s, err := b.Source(natsbroker.SourceConfig{Durable: "flow", AckWait: 2 * time.Second, Receive: cfg})
	return s, func() { _ = b.Close() }, err
}

func (p natsPlace) read(ctx context.Context) ([][]byte, error) {
	conn, err := nats.Connect(p.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, p.stream)
	if err != nil {
		return nil, err
	}
	all, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for last := uint64(0); last < s.CachedInfo().State.LastSeq; {
		batch, err := all.Fetch(1000, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			found, last = append(found, m.Data()), meta.Sequence.Stream
		}
		if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			return nil, err
		}
	}
	return found, nil
}
