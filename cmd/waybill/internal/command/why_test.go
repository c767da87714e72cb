package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// why asks the program why an event has not arrived, and returns the reasons.
// Both forms of the output must say the same, and every command must exist.
func (s *script) why(id waybill.ID) []reason {
	s.t.Helper()
	out, errs, code := s.run(s.t.Context(), []string{"show", id.String(), "--json"}, "")
	if code != command.Ok {
		s.t.Fatalf("exit code %d: %s", code, errs)
	}
	var v struct{ Why []reason }
	s.must(json.Unmarshal([]byte(out), &v))
	text, errs, code := s.run(s.t.Context(), []string{"show", id.String()}, "")
	if code != command.Ok {
		s.t.Fatalf("exit code %d: %s", code, errs)
	}
	flat := strings.Join(strings.Fields(text), " ")
	for _, r := range v.Why {
		same := passed.ReplaceAllString(regexp.QuoteMeta("why "+r.Text), someTime)
		if !regexp.MustCompile(same).MatchString(flat) {
			s.t.Errorf("the output does not say %q:\n%s", r.Text, text)
		}
		if len(r.Commands) == 0 {
			s.t.Errorf("%q has no command", r.Text)
		}
		for _, c := range r.Commands {
			if !strings.Contains(text, "     "+c+"\n") {
				s.t.Errorf("the output lacks the command %s:\n%s", c, text)
			}
			args := append(strings.Fields(strings.TrimPrefix(c, "waybill ")), "--help")
			if _, errs, code := s.run(s.t.Context(), args, ""); code != command.Ok {
				s.t.Errorf("%s: exit code %d: %s", c, code, errs)
			}
		}
	}
	return v.Why
}

type reason struct {
	Reason, Destination, Text, By string
	Commands                      []string
	Since, Until                  time.Time
}

// wants fails unless the reasons are of these kinds, and the last one has this
// text.
func (s *script) wants(got []reason, text string, kinds ...string) reason {
	s.t.Helper()
	var are []string
	for _, r := range got {
		are = append(are, r.Reason)
	}
	if fmt.Sprint(are) != fmt.Sprint(kinds) {
		s.t.Fatalf("the reasons are %v, want %v: %+v", are, kinds, got)
	}
	last := got[len(got)-1]
	if !regexp.MustCompile("^" + text + "$").MatchString(last.Text) {
		s.t.Errorf("the text is %q, want %q", last.Text, text)
	}
	return last
}

// send writes events of an aggregate, or unordered ones.
func (s *script) send(st *connect.Store, aggregate string, n int) []waybill.ID {
	s.t.Helper()
	ids := make([]waybill.ID, n)
	for i := range ids {
		ev := waybill.NewEvent("OrderPlaced", i)
		ids[i] = waybill.NewID()
		if ev.ID = ids[i]; aggregate != "" {
			ev.AggregateType, ev.AggregateID = "order", aggregate
		}
		_, err := st.Send(s.t.Context(), ev)
		s.must(err)
	}
	return ids
}

// deliver runs a relay until stop is called or the test ends: with one sink
// that has no name, or with destinations.
func (s *script) deliver(st *connect.Store, to ...relay.Destination) (stop func()) {
	s.t.Helper()
	cfg := relay.Config{
		TakeOver: true, PollInterval: 20 * time.Millisecond, Heartbeat: 100 * time.Millisecond, Lease: time.Minute, Logger: slog.New(slog.DiscardHandler),
	}
	var r *relay.Relay
	var err error
	if len(to) == 1 && to[0].Name == "" {
		cfg.BackoffBase, cfg.BackoffMax = to[0].BackoffBase, to[0].BackoffMax
		r, err = relay.New(st, to[0].Sink, cfg)
	} else {
		r, err = relay.NewTo(st, cfg, to...)
	}
	s.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		s.must(<-done)
	})
	s.t.Cleanup(stop)
	return stop
}

// kindOfReason returns the kinds of the reasons of an event.
func (s *script) kindOfReason(id waybill.ID) string {
	out, _, _ := s.run(s.t.Context(), []string{"show", id.String(), "--json"}, "")
	var v struct{ Why []reason }
	_ = json.Unmarshal([]byte(out), &v)
	var kinds []string
	for _, r := range v.Why {
		kinds = append(kinds, r.Reason)
	}
	return strings.Join(kinds, " ")
}

// at waits until an event has a reason: a relay is about to make it.
func (s *script) at(id waybill.ID, kinds string) {
	s.t.Helper()
	last := ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the last reason of %s is %q, want %q", id, last, kinds)
		}
	}()
	waitFor(s.t, kinds, func() bool {
		last = s.kindOfReason(id)
		return last == kinds
	})
}

// tellsOf asserts that every command that shows destinations tells of the
// trouble of one, in words and as JSON.
func (s *script) tellsOf(name, state string, texts ...string) {
	s.t.Helper()
	for _, args := range []string{"stats", "destinations list", "stats --destination " + name} {
		out, errs, code := s.run(s.t.Context(), strings.Fields(args), "")
		flat := strings.Join(strings.Fields(out), " ")
		for _, text := range texts {
			if code != command.Ok || !strings.Contains(flat, text) {
				s.t.Errorf("%s does not say %q: exit code %d: %s%s", args, text, code, out, errs)
			}
		}
		out, errs, code = s.run(s.t.Context(), append(strings.Fields(args), "--json"), "")
		if code != command.Ok || !strings.Contains(out, `"state": "`+state+`"`) || !strings.Contains(out, `"troubles": [`) {
			s.t.Errorf("%s --json has no %s: exit code %d: %s%s", args, state, code, out, errs)
		}
	}
	out, _, _ := s.run(s.t.Context(), []string{"stats"}, "")
	host, err := os.Hostname()
	s.must(err)
	if !strings.Contains(out, host) || !strings.Contains(out, fmt.Sprint(os.Getpid())) {
		s.t.Errorf("stats does not name the host %s and the process %d:\n%s", host, os.Getpid(), out)
	}
	if !strings.Contains(out, " delivered") || !strings.Contains(out, " in the last minute") {
		s.t.Errorf("stats has no results of the last minute:\n%s", out)
	}
	out, _, _ = s.run(s.t.Context(), []string{"doctor", "--json"}, "")
	for _, text := range texts {
		if !strings.Contains(out, text) {
			s.t.Errorf("doctor does not say %q:\n%s", text, out)
		}
	}
}

const someTime = `\d+ \w+( \d+ \w+)?`

var answers = map[string]func(s *script, st *connect.Store){
	"no relay": func(s *script, st *connect.Store) {
		id := s.send(st, "", 1)[0]
		if r := s.wants(s.why(id), `No relay is running: nothing is delivered until one starts\.`, "no_relay"); r.Commands[0] != "waybill doctor" {
			s.t.Errorf("%+v", r)
		}
	},
	"no owner of the lane": func(s *script, st *connect.Store) {
		id := s.send(st, "", 1)[0]
		// A relay that has started and has not taken the lane yet.
		_, err := st.Relay.Heartbeat(s.t.Context(), store.Node{ID: waybill.NewID(), Relay: "waybill"}, time.Hour)
		s.must(err)
		r := s.wants(s.why(id), `No live relay owns lane 0: nothing of this lane is delivered until a relay takes it over\.`, "no_owner")
		if r.Commands[0] != "waybill doctor" {
			s.t.Errorf("%+v", r)
		}
	},
	"paused": func(s *script, st *connect.Store) {
		s.deliver(st, accepts("billing"), accepts("shipping"))
		waitFor(s.t, "the destinations", func() bool {
			_, _, code := s.run(s.t.Context(), []string{"destinations", "pause", "billing", "--reason", "the bank moves."}, "")
			return code == command.Ok
		})
		var id waybill.ID
		waitFor(s.t, "the relay to see the pause", func() bool {
			id = s.send(st, "", 1)[0]
			waitFor(s.t, "the event", func() bool { return s.kindOfReason(id) == "paused" || s.kindOfReason(id) == "delivered" })
			return s.kindOfReason(id) == "paused"
		})
		r := s.wants(s.why(id), `Destination billing has been paused for `+someTime+`: the bank moves\.`, "paused")
		if r.Destination != "billing" || r.Commands[0] != "waybill destinations resume billing" || r.Since.IsZero() {
			s.t.Errorf("%+v", r)
		}
	},
	"down": func(s *script, st *connect.Store) {
		var back atomic.Bool
		s.deliver(st, accepts("billing"), relay.Destination{
			Name: "shipping", BackoffBase: time.Hour, BackoffMax: time.Hour,
			Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error {
				if back.Load() {
					return nil
				}
				return waybill.Unavailable(errors.New("NO_ROUTE OrderPlaced.")) //nolint:revive // a broker's text, with its period
			}),
		})
		ids := s.send(st, "17", 2)
		for _, id := range ids {
			s.at(id, "down")
			r := s.wants(s.why(id), `It waits: destination shipping has been down for `+someTime+`: NO_ROUTE OrderPlaced; the next probe is in `+someTime+`\.`, "down")
			if r.Destination != "shipping" || r.Commands[0] != "waybill destinations probe shipping" || r.Since.IsZero() || time.Until(r.Until) < time.Minute {
				s.t.Errorf("%+v", r)
			}
		}
		s.tellsOf("shipping", "down", "destination shipping has been down for ", ": NO_ROUTE OrderPlaced; the next probe is in ")
		back.Store(true)
		if _, errs, code := s.run(s.t.Context(), strings.Fields("destinations probe shipping"), ""); code != command.Ok {
			s.t.Errorf("probe: exit code %d: %s", code, errs)
		}
		for _, id := range ids {
			s.at(id, "delivered")
		}
	},
	"the only sink is down": func(s *script, st *connect.Store) {
		s.deliver(st, relay.Destination{BackoffBase: time.Hour, BackoffMax: time.Hour, Sink: fails(waybill.Unavailable(errors.New("no broker")))})
		id := s.send(st, "", 1)[0]
		s.at(id, "down")
		r := s.wants(s.why(id), `It waits: the destination has been down for `+someTime+`: no broker; the next probe is in `+someTime+`\.`, "down")
		if r.Destination != "" || r.Commands[0] != "waybill doctor" {
			s.t.Errorf("%+v", r)
		}
	},
	"rate-limited": func(s *script, st *connect.Store) {
		s.deliver(st, accepts("billing"), relay.Destination{Name: "partner", Rate: 0.01, Sink: accepts("").Sink})
		s.at(s.send(st, "", 1)[0], "delivered") // it uses the rate
		id := s.send(st, "", 1)[0]
		s.at(id, "rate_limited")
		r := s.wants(s.why(id), `It waits: destination partner has been rate-limited for `+someTime+`, to 0\.01 events per second and node\.`, "rate_limited")
		if r.Destination != "partner" || r.Commands[0] != "waybill stats --destination partner" {
			s.t.Errorf("%+v", r)
		}
		s.tellsOf("partner", "rate-limited", "destination partner has been rate-limited for ", ", to 0.01 events per second and node.")
	},
	"held by an earlier event": func(s *script, st *connect.Store) {
		s.deliver(st, relay.Destination{Sink: fails(waybill.RetryAfter(time.Hour, errors.New("the carrier does not answer")))})
		ids := s.send(st, "17", 2)
		s.at(ids[0], "retry")
		r := s.wants(s.why(ids[1]), `It waits for the earlier event `+ids[0].String()+` of its aggregate \(OrderPlaced, failed, once\): the carrier does not answer\.`, "held")
		if r.By != ids[0].String() || r.Commands[0] != "waybill show "+r.By || r.Commands[1] != "waybill blocked unblock "+r.By {
			s.t.Errorf("%+v", r)
		}
	},
	"held at a destination": func(s *script, st *connect.Store) {
		s.deliver(st, accepts("billing"), relay.Destination{Name: "partner", OnDead: relay.Block, Sink: fails(waybill.Permanent(errors.New("no such customer")))})
		ids := s.send(st, "17", 2)
		s.at(ids[0], "dead")
		s.at(ids[1], "held")
		r := s.wants(s.why(ids[1]),
			`It waits at destination partner for the earlier event `+ids[0].String()+` of its aggregate \(OrderPlaced, dead\): no such customer\.`, "held")
		if r.Destination != "partner" || r.Commands[1] != "waybill dead replay "+r.By+" --destination partner" {
			s.t.Errorf("%+v", r)
		}
	},
	"scheduled": func(s *script, st *connect.Store) {
		s.deliver(st, accepts(""))
		ev := waybill.NewEvent("ReminderDue", 1)
		ev.ID, ev.Delay = waybill.NewID(), 3*time.Hour
		_, err := st.Send(s.t.Context(), ev)
		s.must(err)
		s.at(ev.ID, "scheduled") // without an owner until the relay has started
		r := s.wants(s.why(ev.ID), `It is scheduled: it is due in 2 h 59 min\.`, "scheduled")
		if time.Until(r.Until) < time.Hour || r.Commands[0] != "waybill list --state scheduled" {
			s.t.Errorf("%+v", r)
		}
	},
	"retry": func(s *script, st *connect.Store) {
		s.deliver(st, accepts("billing"), relay.Destination{Name: "partner", Sink: fails(waybill.RetryAfter(time.Hour, errors.New("the carrier does not answer")))})
		id := s.send(st, "", 1)[0]
		s.at(id, "retry")
		r := s.wants(s.why(id), `It has failed at destination partner, once, and is tried again in 59 min: the carrier does not answer\.`, "retry")
		if r.Until.IsZero() || r.Commands[0] != "waybill list --state failed --destination partner" {
			s.t.Errorf("%+v", r)
		}
	},
	"in flight, and behind": func(s *script, st *connect.Store) {
		called, answer := make(chan bool, 10), make(chan bool)
		s.deliver(st, relay.Destination{Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error {
			called <- true
			<-answer
			return nil
		})})
		s.t.Cleanup(func() { close(answer) })
		ids := s.send(st, "17", 2)
		other := s.send(st, "", 1)[0]
		<-called
		s.at(ids[0], "in_flight")
		r := s.wants(s.why(ids[0]), `It is in flight: it is the first event of lane 0, and relay node 0[0-9A-Z]{25} delivers it\.`, "in_flight")
		if r.Commands[0] != "waybill tail" {
			s.t.Errorf("%+v", r)
		}
		r = s.wants(s.why(ids[1]), `It waits for the earlier event `+ids[0].String()+` of its aggregate \(OrderPlaced, ready\)\.`, "held")
		if r.By != ids[0].String() || r.Commands[0] != "waybill show "+r.By {
			s.t.Errorf("%+v", r)
		}
		r = s.wants(s.why(other), `It waits for its turn in lane 0: 2 earlier events wait, the oldest for `+someTime+`\.`, "behind")
		if r.Commands[0] != "waybill stats" {
			s.t.Errorf("%+v", r)
		}
	},
	"dead": func(s *script, st *connect.Store) {
		s.deliver(st, relay.Destination{Sink: fails(waybill.Permanent(errors.New("no such customer")))})
		id := s.send(st, "", 1)[0]
		s.at(id, "dead")
		r := s.wants(s.why(id), `It has been a dead letter for `+someTime+`, after 1 attempt: no such customer\.`, "dead")
		if r.Commands[0] != "waybill dead replay "+id.String() || r.Since.IsZero() {
			s.t.Errorf("%+v", r)
		}
		if out, errs, code := s.run(s.t.Context(), strings.Fields(r.Commands[0])[1:], ""); code != command.Ok || !strings.Contains(out, "replayed") {
			s.t.Errorf("%s: exit code %d: %s%s", r.Commands[0], code, out, errs)
		}
	},
	"done": func(s *script, st *connect.Store) {
		s.deliver(st, accepts("billing"), accepts("shipping"))
		id := s.send(st, "", 1)[0]
		s.at(id, "delivered")
		s.wants(s.why(id), `It was delivered `+someTime+` ago\. If a consumer has not applied it, its inbox says why\.`, "delivered")
	},
	"unknown": func(s *script, _ *connect.Store) {
		id := waybill.NewID()
		out, errs, code := s.run(s.t.Context(), []string{"show", id.String()}, "")
		want := "no such event: " + id.String() + " (hint: It was never committed to these tables"
		if code != command.NotFound || out != "" || !strings.Contains(errs, want) || !strings.Contains(errs, "Its id was made at 20") ||
			!strings.Contains(errs, "Next: waybill config --changed)") {
			s.t.Errorf("exit code %d: %s%s", code, out, errs)
		}
	},
}

// accepts is a destination that receives everything.
func accepts(name string) relay.Destination {
	return relay.Destination{Name: name, Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil })}
}

// fails is a sink that returns an error.
func fails(err error) relay.SinkFunc {
	return func(context.Context, waybill.Delivery) error { return err }
}

// TestShowSaysWhy: for every reason why an event has not arrived, show names it
// and the next command.
func TestShowSaysWhy(t *testing.T) {
	for name, answer := range answers {
		for _, kind := range []string{"sqlite", "postgres"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				s := newScript(t, kind)
				st := s.open()
				t.Cleanup(func() { s.must(st.Close()) })
				answer(s, st)
			})
		}
	}
}
