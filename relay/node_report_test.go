package relay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// report returns the report of the only node.
func (f *fixture) report() *driver.NodeReport {
	f.Helper()
	s, err := f.db.Driver().OutboxAdmin.Stats(f.Context())
	if err != nil || len(s.Nodes) != 1 {
		f.Fatalf("the nodes are %+v, %v", s.Nodes, err)
	}
	r := driver.DecodeNodeReport(s.Nodes[0].Report, s.Nodes[0].Expires)
	if r == nil {
		f.Fatalf("the report is %q", s.Nodes[0].Report)
	}
	return r
}

// wantTroubles asserts the troubles of the only node, in the form "destination
// state since error", with the time since a beginning.
func (f *fixture) wantTroubles(when string, began time.Time, want ...string) *driver.NodeReport {
	f.Helper()
	r := f.report()
	var got []string
	for _, t := range r.Troubles {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s%s %s %v %s", t.Destination, t.Part, t.State, t.Since.Sub(began).Round(100*time.Millisecond), t.Error)))
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		f.Errorf("%s, the troubles are %q, want %q", when, got, want)
	}
	return r
}

// TestNodeReport: a node reports its process, and the destinations that are
// down, within two seconds and by its heartbeats.
func TestNodeReport(t *testing.T) {
	inBubble(t, func(f *fixture) {
		shipping, billing := &place{}, &place{}
		began := time.Now()
		f.startTo(relay.Config{Version: "v1.2.3", BackoffBase: time.Second, BackoffMax: time.Second, Heartbeat: 5 * time.Second},
			relay.Destination{Name: "shipping", Sink: shipping}, relay.Destination{Name: "billing", Sink: billing})
		pass(time.Second)
		r := f.wantTroubles("at first", began)
		host, err := os.Hostname()
		if err != nil || r.Host != host || r.PID != os.Getpid() || r.Version != "v1.2.3" || r.StartedAt.Sub(began) != 0 {
			t.Errorf("the process is %+v, want %s, %d and v1.2.3, since %v", r, host, os.Getpid(), began)
		}
		shipping.down()
		f.write(series("x", 1, 1)...)
		pass(900 * time.Millisecond)
		f.wantTroubles("1.9 s after the first heartbeat", began)
		pass(200 * time.Millisecond)
		r = f.wantTroubles("2.1 s after it", began, "shipping down 1s down")
		if next := r.Troubles[0].NextProbe.Sub(began); next < 1500*time.Millisecond || next > 3600*time.Millisecond {
			t.Errorf("the next probe is %v after the beginning", next)
		}
		billing.down()
		f.write(series("x", 2, 2)...)
		pass(1800 * time.Millisecond)
		f.wantTroubles("before the next one is allowed", began, "shipping down 1s down")
		pass(200 * time.Millisecond)
		f.wantTroubles("after it", began, "shipping down 1s down", "billing down 2.1s down")
		shipping.say(func(context.Context, waybill.Delivery) error { return nil })
		pass(4 * time.Second)
		f.wantTroubles("when one is back", began, "billing down 2.1s down")
		billing.say(func(context.Context, waybill.Delivery) error { return nil })
		pass(4 * time.Second)
		f.wantTroubles("when both are", began)
	})
}

// TestNodeReportOfOneSink: the sink of a relay without destinations is reported
// by its parts.
func TestNodeReportOfOneSink(t *testing.T) {
	inBubble(t, func(f *fixture) {
		began := time.Now()
		f.start(byType{waybill.Unavailable(errors.New("no broker"))}, relay.Config{})
		pass(time.Second)
		f.write(event("a", 1))
		pass(2 * time.Second)
		f.wantTroubles("when it is down", began, "topic-"+event("a", 1).Type+" down 1s no broker")
	})
}

// byType is a sink whose destinations are the types of events, and that refuses
// them all.
type byType struct{ err error }

func (b byType) Destination(ev *waybill.Event) string { return "topic-" + ev.Type }

func (b byType) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i := range errs {
		errs[i] = b.err
	}
	return errs
}

// TestFewReportsOfADestinationThatFlaps: however often a destination changes
// its state, heartbeats are two seconds apart.
func TestFewReportsOfADestinationThatFlaps(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		f.startTo(relay.Config{BackoffBase: 10 * time.Millisecond, BackoffMax: 10 * time.Millisecond, Heartbeat: 5 * time.Second},
			relay.Destination{Name: "p", Sink: p})
		pass(time.Second)
		var beats []time.Time
		for i := range 200 {
			if i%2 == 0 {
				p.down()
				f.write(series("x", i, i)...)
			} else {
				p.say(func(context.Context, waybill.Delivery) error { return nil })
			}
			pass(50 * time.Millisecond)
			if at := f.report().At; len(beats) == 0 || !at.Equal(beats[len(beats)-1]) {
				beats = append(beats, at)
			}
		}
		for i := 1; i < len(beats); i++ {
			if between := beats[i].Sub(beats[i-1]); between < 2*time.Second-time.Millisecond {
				t.Errorf("heartbeat %d came %v after the one before", i, between)
			}
		}
		if len(beats) != 6 {
			t.Errorf("%d heartbeats in 10 s, want the first and 5 more", len(beats))
		}
	})
}

// slowBeats is a store whose second heartbeat takes a second.
type slowBeats struct {
	driver.Relay
	beats atomic.Int64
}

func (s *slowBeats) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	if s.beats.Add(1) == 2 {
		pause(time.Second)
	}
	return s.Relay.Heartbeat(ctx, n, lease)
}

// pause takes time without waiting for the others.
func pause(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // synctest's time

// TestChangeDuringAHeartbeat: a destination that goes down while a heartbeat is
// under way is in the next report, two seconds after that one.
func TestChangeDuringAHeartbeat(t *testing.T) {
	inBubble(t, func(f *fixture) {
		began := time.Now()
		f.startOn(&slowBeats{Relay: f.db.Driver().Relay}, byType{waybill.Unavailable(errors.New("no broker"))}, relay.Config{Heartbeat: 5 * time.Second})
		pass(5500 * time.Millisecond)
		f.write(event("a", 1))
		pass(1400 * time.Millisecond)
		f.wantTroubles("1.9 s after the slow heartbeat", began)
		pass(200 * time.Millisecond)
		f.wantTroubles("2.1 s after it", began, "topic-Tested down 5.5s no broker")
	})
}

// TestNodeReportOfARate: events that wait for the rate of a destination are
// reported, with the rate.
func TestNodeReportOfARate(t *testing.T) {
	inBubble(t, func(f *fixture) {
		began := time.Now()
		f.startTo(relay.Config{}, relay.Destination{Name: "slow", Sink: &place{}, Rate: 10})
		pass(time.Second)
		f.write(series("x", 1, 100)...)
		pass(3 * time.Second)
		if r := f.wantTroubles("after 4 s", began, "slow rate-limited 1s"); r.Troubles[0].Rate != 10 {
			t.Errorf("the rate is %v", r.Troubles[0].Rate)
		}
		pass(60 * time.Second)
		f.wantTroubles("after a minute", began)
	})
}

// TestNodeReportOfAnAdaptedRate: a rate that is lower than usual is reported
// with the answer that lowered it.
func TestNodeReportOfAnAdaptedRate(t *testing.T) {
	inBubble(t, func(f *fixture) {
		strict := &place{}
		strict.say(func(context.Context, waybill.Delivery) error { return tooMany{} })
		began := time.Now()
		f.startTo(relay.Config{MaxAttempts: 1000, BackoffBase: time.Second, BackoffMax: time.Second}, relay.Destination{Name: "strict", Sink: strict})
		pass(time.Second)
		for i := range 100 {
			f.write(event(fmt.Sprint("a", i), i))
		}
		pass(5 * time.Second)
		r := f.report()
		if len(r.Troubles) != 1 || r.Troubles[0].State != driver.TroubleLimited || r.Troubles[0].Error != "429 Too Many Requests" || r.Troubles[0].Rate < 1 || r.Troubles[0].Rate >= 100 {
			t.Fatalf("after 6 s, the troubles are %+v", r.Troubles)
		}
		if since := r.Troubles[0].Since.Sub(began); since < time.Second || since > 3*time.Second {
			t.Errorf("the events wait since %v after the beginning", since)
		}
		strict.say(func(context.Context, waybill.Delivery) error { return nil })
		pass(2 * time.Minute)
		f.wantTroubles("when it takes all events", began)
	})
}
