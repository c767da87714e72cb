package command_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/relay"
)

// TestALiveRelayRefuses checks the commands that require stopped relays.
func TestALiveRelayRefuses(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			s.fixture([]string{"destinations"}, "")
			s.fixture([]string{"live"}, "")
			for _, args := range [][]string{{"destinations", "remove", "partner", "--yes"}, {"restored", "--yes"}} {
				out, errs, code := s.run(t.Context(), args, "")
				if code != command.Failed || out != "" || !strings.Contains(errs, "a relay is running on this outbox") || !strings.Contains(errs, "(hint: stop every waybill serve") {
					t.Errorf("%v: %d %s%s", args, code, out, errs)
				}
			}
			if out, errs, code := s.run(t.Context(), []string{"restored", "--yes", "--force"}, ""); code != command.Ok || !strings.Contains(out, "pending     2 ") {
				t.Errorf("restored --force: %d %s%s", code, out, errs)
			}
			// The relay of the backup is forgotten.
			if out, errs, code := s.run(t.Context(), []string{"destinations", "remove", "partner", "--yes"}, ""); code != command.Ok {
				t.Errorf("remove: %d %s%s", code, out, errs)
			}
		})
	}
}

// receiver collects what a destination receives.
type receiver struct {
	mu  sync.Mutex
	got []string
}

func (r *receiver) deliver(_ context.Context, d waybill.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, string(d.Payload))
	return nil
}

func (r *receiver) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// runRelay runs a relay with destinations until stop is called.
func runRelay(t *testing.T, s *script, st *connect.Store, to map[string]*receiver) (stop func()) {
	t.Helper()
	var all []relay.Destination
	for name, r := range to {
		all = append(all, relay.Destination{Name: name, Sink: relay.SinkFunc(r.deliver)})
	}
	r, err := relay.NewTo(st, relay.Config{TakeOver: true, PollInterval: 20 * time.Millisecond, Heartbeat: 100 * time.Millisecond, Lease: time.Minute}, all...)
	s.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		s.must(<-done)
	}
}

// TestANewDestinationReceivesTheHistory follows waybill destinations add --help
// while events are written and delivered: the new destination receives every
// event once, in order.
func TestANewDestinationReceivesTheHistory(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			st := s.open()
			defer func() { s.must(st.Close()) }()
			var want []string
			billing, archive := &receiver{}, &receiver{}
			write := func() {
				t.Helper()
				for range 5 {
					ev := waybill.NewEvent("OrderPlaced", len(want))
					ev.AggregateType, ev.AggregateID = "order", "17"
					_, err := st.Send(t.Context(), ev)
					s.must(err)
					want = append(want, fmt.Sprint(len(want)))
				}
				waitFor(t, "billing", func() bool { return len(billing.received()) == len(want) })
			}
			settled := func() {
				t.Helper()
				waitFor(t, "the settlements", func() bool {
					out, errs, code := s.run(t.Context(), []string{"list", "--state", "delivered", "--json"}, "")
					if code != command.Ok {
						t.Fatal(errs)
					}
					return strings.Count(out, `"OrderPlaced"`) == len(want)
				})
			}
			stop := runRelay(t, s, st, map[string]*receiver{"billing": billing})
			write()
			settled()
			_, errs, code := s.run(t.Context(), []string{"destinations", "add", "archive", "--from", "beginning"}, "")
			next := regexp.MustCompile(`then: waybill (destinations resume archive --since \S+)\n`).FindStringSubmatch(errs)
			if code != command.Ok || next == nil {
				t.Fatalf("%d %s", code, errs)
			}
			write() // to a relay that does not have the new destination
			stop()
			stop = runRelay(t, s, st, map[string]*receiver{"billing": billing, "archive": archive})
			write()
			settled()
			if got := archive.received(); got != nil {
				t.Errorf("a paused destination received %v", got)
			}
			out, errs, code := s.run(t.Context(), strings.Fields(next[1]), "")
			if code != command.Ok || !strings.Contains(out, "copied from the history: 5\nresumed: archive\n") {
				t.Errorf("%s: %d %s%s", next[1], code, out, errs)
			}
			write()
			waitFor(t, "archive", func() bool { return len(archive.received()) >= len(want) })
			stop()
			for name, r := range map[string]*receiver{"billing": billing, "archive": archive} {
				if got := r.received(); !slices.Equal(got, want) {
					t.Errorf("%s received %v, want %v", name, got, want)
				}
			}
		})
	}
}

// TestTheNextCommandIsQuoted checks a selection with words that a shell would
// read otherwise.
func TestTheNextCommandIsQuoted(t *testing.T) {
	s := newScript(t, "sqlite")
	s.fixture([]string{"tables"}, "")
	_, errs, code := s.run(t.Context(), []string{
		"destinations", "add", "archive", "--from", "1d", "--type", "OrderPlaced", "--type", "Order$", "--aggregate-type", "order line", "--aggregate", "*", "--tenant", "O'Neill",
	}, "")
	want := `--type OrderPlaced --type 'Order$' --aggregate-type 'order line' --tenant 'O'\''Neill' --aggregate '*'`
	if code != command.Ok || !strings.Contains(errs, want) {
		t.Errorf("%d %s", code, errs)
	}
}
