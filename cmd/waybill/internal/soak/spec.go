package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// The roles of child processes.
const (
	roleProducer  = "producer"
	roleRequester = "requester"
	roleRelay     = "relay"
	roleConsumer  = "consumer"
)

// spec is the task of a child process. It is the first line of the child's
// input, because it holds passwords: arguments and variables are visible to
// other processes.
type spec struct {
	Role, Name string
	// Life counts the starts of this child, from 1.
	Life int
	Seed uint64
	Run  string

	Store, ListenURL, Schema, Prefix string
	OneNode                          bool
	Sink, Topic                      string
	// Topics are the topics of a consumer.
	Topics []string

	// Rate is the number of events, or of requests, per second.
	Rate float64
	// First is the number of a requester's first key.
	First int
	// Die is the mean time until the child kills itself at a random place;
	// 0: never.
	Die time.Duration
	// Sabotage is a kind of sabotage for this child.
	Sabotage Sabotage
	Lease    time.Duration
}

// storeSettings returns the settings of the store.
func (s *spec) storeSettings() settings.Store {
	return settings.Store{
		URL: settings.NewSecret(s.Store), ListenURL: settings.NewSecret(s.ListenURL), Schema: s.Schema, Prefix: s.Prefix, OneNode: s.OneNode,
		Connections: 6, ConnectTimeout: connectTimeout, BusyTimeout: 5 * time.Second,
	}
}

// sinkSettings returns the settings of the sink.
func (s *spec) sinkSettings() settings.Sink {
	return settings.Sink{URL: settings.NewSecret(s.Sink), Topic: s.Topic}
}

const connectTimeout = 5 * time.Second

// child is a child process.
type child struct {
	spec
	*mortality
	out *noter
	log *slog.Logger
	// random determines the child's work.
	random *rand.Rand
	store  *connect.Store
	names  tables
}

// Child is the main function of a child process. It reads its task from the
// first line of in, and ends at once when in ends, because then its parent is
// gone. It stops gracefully on SIGTERM.
func Child(ctx context.Context, in io.Reader, out, errs io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return errors.New("soak: a child process reads its task from its parent; run waybill soak")
	}
	c := &child{out: &noter{to: out}, log: slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if err := json.Unmarshal(line, &c.spec); err != nil {
		return fmt.Errorf("soak: the task of a child process: %w", err)
	}
	go func() {
		_, _ = lines.ReadByte()
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	defer stop()
	slog.SetDefault(c.log)
	c.random = rand.New(rand.NewPCG(c.Seed, stream(c.Name, c.Life))) //nolint:gosec // a workload, not a secret
	c.mortality = newMortality(c.Die, c.random, c.out)
	if c.store, err = connect.OpenStore(ctx, c.storeSettings(), false); err != nil {
		return err
	}
	c.names = tablesOf(c.store.Kind, c.Schema, c.Prefix)
	c.out.note(note{Kind: noteUp})
	switch c.Role {
	case roleProducer:
		err = c.produce(ctx)
	case roleRequester:
		err = c.request(ctx)
	case roleRelay:
		err = c.relay(ctx)
	case roleConsumer:
		err = c.consume(ctx)
	default:
		err = fmt.Errorf("soak: unknown role %q", c.Role)
	}
	return errors.Join(err, c.store.Close())
}

// stream returns the number of a random stream.
func stream(name string, life int) uint64 {
	n := uint64(14695981039346656037)
	for i := range len(name) {
		n = (n ^ uint64(name[i])) * 1099511628211
	}
	return n ^ uint64(life)<<32 //nolint:gosec // life is positive
}

// mortality ends a process at a random time and place.
type mortality struct {
	at  time.Time // zero: never
	out *noter

	mu sync.Mutex
	// skip is the number of places to pass after the time.
	skip int
}

func newMortality(mean time.Duration, random *rand.Rand, out *noter) *mortality {
	m := &mortality{out: out}
	if mean > 0 {
		m.at = time.Now().Add(time.Duration(random.ExpFloat64() * float64(mean)))
		m.skip = random.IntN(4)
	}
	return m
}

// place is where the process may die.
func (m *mortality) place(where string) {
	if m.at.IsZero() || time.Now().Before(m.at) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.skip > 0 {
		m.skip--
		return
	}
	m.out.note(note{Kind: noteDie, Text: where})
	killSelf()
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
