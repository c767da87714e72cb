//go:build linux || darwin

package brokers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/pgstore"
)

// mortalVariable makes the test binary a consumer: it holds a mortal.
const mortalVariable = "WAYBILL_BROKERS_CONSUMER"

// mortal is a process that consumes with an inbox group, and that some events
// kill.
type mortal struct {
	Broker, Address, Name string // of the place
	DSN, Prefix           string
	Journal               string // a line for every event that a handler gets
	MaxAttempts           int    // the group's
	// Slow makes each handler take time, and the source hand out one event to
	// each of many workers: as many attempts as possible are in flight when the
	// process dies.
	Slow bool
}

const (
	mortalGroup = "mortals"
	killerType  = "Killer"
	otherType   = "Other"
	// killerAttempts is the group's MaxAttempts.
	killerAttempts = 2
)

// killerPlaces returns places from the values passed to a process.
func killerPlaces(name, address, topic string) place {
	switch name {
	case "kafka":
		// the minimum
		return kafkaPlace{address: address, name: topic, session: 6 * time.Second}
	case "pulsar":
		return pulsarPlace{address, topic}
	case "redis":
		return redisPlace{address, topic}
	case "rabbitmq":
		return rabbitPlace{address, topic}
	case "nats":
		return natsPlace{address, topic}
	case "webhook":
		return webhookPlace{address: address}
	}
	return nil
}

// runMortal consumes until it is killed.
func runMortal(text string) error {
	var m mortal
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	ctx := context.Background()
	journal, err := os.OpenFile(m.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, m.DSN)
	if err != nil {
		return err
	}
	db, err := pgstore.New(pool, pgstore.Config{Prefix: m.Prefix})
	if err != nil {
		return err
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		return err
	}
	g := in.MustGroup(mortalGroup, inbox.Options{MaxAttempts: m.MaxAttempts, Lease: time.Second, BackoffBase: 10 * time.Millisecond})
	for _, typ := range []string{otherType, killerType} {
		g.Handle("order", typ, func(ctx context.Context, _ pgx.Tx, ev waybill.Event) error {
			if _, err := fmt.Fprintln(journal, ev.Type, ev.AggregateID); err != nil {
				return err
			}
			if m.Slow {
				if err := pause(ctx, 200*time.Millisecond); err != nil {
					return err
				}
			}
			if ev.Type == killerType {
				os.Exit(3)
			}
			return nil
		})
	}
	var cfg broker.ReceiverConfig
	if m.Slow {
		cfg.Workers, cfg.BatchSize = 8, 1
	}
	src, _, err := killerPlaces(m.Broker, m.Address, m.Name).source(ctx, cfg)
	if err != nil {
		return err
	}
	return src.Run(ctx, g)
}

// TestKillerEndsDead: an event that kills its consumer becomes dead, whether or
// not the broker counts deliveries, and no other event is counted with it.
func TestKillerEndsDead(t *testing.T) {
	for _, s := range stands() {
		t.Run(s.name, func(t *testing.T) {
			begin(t)
			address := s.shared(t)
			there := s.place(t, address, nil)
			killer(t, mortal{Broker: s.name, Address: address, MaxAttempts: killerAttempts}, there, 40, 10)
		})
	}
}

// TestNeighborsOfAKiller: every process that an event kills has as many other
// events in flight as it can. Their attempts are counted beforehand, and none
// dies with the killer's: no other event is counted twice.
func TestNeighborsOfAKiller(t *testing.T) {
	for _, s := range stands() {
		t.Run(s.name, func(t *testing.T) {
			begin(t)
			address := s.shared(t)
			there := s.place(t, address, nil)
			killer(t, mortal{Broker: s.name, Address: address, MaxAttempts: 3, Slow: true}, there, 21, 21)
		})
	}
}

// killer sends events, of which the middle one kills its process, and runs
// processes until it is dead and the others are done.
func killer(t *testing.T, m mortal, there place, events, aggregates int) {
	t.Helper()
	name := m.Broker
	m.Name, m.DSN = there.topic(), testserver.Postgres(t)
	m.Prefix, m.Journal = "k"+strings.ToLower(waybill.NewID().String())+"_", filepath.Join(t.TempDir(), "journal")
	if p, ok := there.(natsPlace); ok {
		m.Name = p.stream
	}
	pool, err := pgxpool.New(t.Context(), m.DSN)
	must(t, err)
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{Prefix: m.Prefix})
	must(t, err)
	_, err = db.Migrate(t.Context())
	must(t, err)

	sink, closeSink, err := there.sink(t.Context(), nil)
	must(t, err)
	defer closeSink()
	var sending sync.WaitGroup
	defer sending.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var killers, others []waybill.ID
	for n := range events {
		ev := waybill.NewEvent(otherType, n)
		if n == events/2 {
			ev = waybill.NewEvent(killerType, n)
		}
		ev.ID, ev.Topic, ev.AggregateType, ev.AggregateID = waybill.NewID(), there.topic(), "order", fmt.Sprint(n%aggregates)
		if n == events/2 {
			killers = append(killers, ev.ID)
		} else {
			others = append(others, ev.ID)
		}
		d := waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
		if name != "webhook" {
			must(t, sink.Deliver(t.Context(), []waybill.Delivery{d})[0])
			continue
		}
		// No broker keeps the event until there is a receiver: the sender does.
		sending.Go(func() {
			for class := waybill.ClassUnavailable; class != waybill.ClassDone && class != waybill.ClassPermanent && pause(ctx, 20*time.Millisecond) == nil; {
				class, _ = waybill.Classify(sink.Deliver(ctx, []waybill.Delivery{d})[0])
			}
		})
	}

	text, err := json.Marshal(m)
	must(t, err)
	for processes := 1; !settled(t, db, killers, others); processes++ {
		// The first kill may not be counted; from then on an attempt is counted
		// beforehand.
		if processes > m.MaxAttempts+3 {
			t.Fatalf("%d processes are dead, and the event that kills them is not", processes-1)
		}
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), mortalVariable+"="+string(text))
		child.Stderr = os.Stderr
		must(t, child.Start())
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		gone := false
		await(t, "end of a process, or of the killer", func() bool {
			select {
			case <-ended:
				gone = true
			default:
			}
			return gone || settled(t, db, killers, others)
		})
		if !gone {
			must(t, child.Process.Kill())
			<-ended
		}
	}
	for _, id := range killers {
		if rec := recordOf(t, db, id); rec.State != store.InboxDead || rec.Attempts != m.MaxAttempts {
			t.Errorf("the killer is %v after %d attempts, want it dead after %d", rec.State, rec.Attempts, m.MaxAttempts)
		}
	}
	maxAttempts := 1
	if name == "webhook" {
		// attempts are counted beforehand, also those in flight at the first
		// kill
		maxAttempts = 2
	}
	for _, id := range others {
		if rec := recordOf(t, db, id); rec.State != store.InboxSucceeded || rec.Attempts > maxAttempts {
			t.Errorf("another event is %v after %d attempts", rec.State, rec.Attempts)
		}
	}
	lines, err := os.ReadFile(m.Journal)
	must(t, err)
	if n := strings.Count(string(lines), killerType); n > m.MaxAttempts+1 {
		t.Errorf("%d processes were killed, want %d, and one more that did not know", n, m.MaxAttempts)
	}
}

// settled reports whether the killers are dead and the others are done.
func settled(t *testing.T, db *pgstore.Store, killers, others []waybill.ID) bool {
	t.Helper()
	for _, id := range killers {
		if recordOf(t, db, id).State != store.InboxDead {
			return false
		}
	}
	for _, id := range others {
		if s := recordOf(t, db, id).State; s != store.InboxSucceeded && s != store.InboxDead {
			return false
		}
	}
	return true
}

// recordOf returns the record of an event; without one, it is in processing.
func recordOf(t *testing.T, db *pgstore.Store, id waybill.ID) store.InboxRecord {
	t.Helper()
	rec, _, err := db.Driver().InboxRecords.FindRecord(t.Context(), mortalGroup, id)
	must(t, err)
	return rec
}
