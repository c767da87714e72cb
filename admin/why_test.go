package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// own makes a node the owner of every lane.
func (g *ground) own() waybill.ID {
	g.t.Helper()
	ctx := g.t.Context()
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	_, err := g.roles.Relay.Heartbeat(ctx, node, 24*time.Hour)
	g.must(err)
	_, err = g.roles.Relay.Acquire(ctx, node, []int{0, 1, 2, 3}, 100)
	g.must(err)
	return node.ID
}

// why returns the reasons why an event has not arrived.
func (g *ground) why(id waybill.ID) []admin.Reason {
	g.t.Helper()
	j, err := g.main.Journey(g.t.Context(), id)
	g.must(err)
	for _, r := range j.Why {
		if r.Text == "" || len(r.Commands) == 0 || !strings.HasSuffix(r.Text, ".") || strings.HasSuffix(r.Text, "..") {
			g.t.Errorf("%+v", r)
		}
	}
	return j.Why
}

func (g *ground) wants(got []admin.Reason, text string, kinds ...admin.ReasonKind) {
	g.t.Helper()
	if len(got) != len(kinds) {
		g.t.Fatalf("the reasons are %+v, want %v", got, kinds)
	}
	for i, kind := range kinds {
		if got[i].Kind != kind {
			g.t.Errorf("the reason is %+v, want %s", got[i], kind)
		}
	}
	if last := got[len(got)-1].Text; !strings.Contains(last, text) {
		g.t.Errorf("the text is %q, want %q", last, text)
	}
}

// TestWhyOfAnEventThatFailedForGood: it becomes a dead letter when its turn
// comes.
func TestWhyOfAnEventThatFailedForGood(t *testing.T) {
	g := newGround(t, admin.Config{}, "billing")
	id := g.write("17", 1)[0]
	g.settled(true, func(_ store.Destination, row store.Row, s *driver.Settlement) {
		r := result(row, 2, "no such customer.")
		r.Holds = false
		s.Dead = append(s.Dead, r)
	}, "billing")
	g.own()
	g.wants(g.why(id), "It has been a dead letter at destination billing for ", admin.ReasonDead)
	if r := g.why(id)[0]; len(r.Commands) != 2 || r.Commands[0] != "waybill dead replay "+id.String()+" --destination billing" {
		t.Errorf("%+v", r)
	}
}

// TestWhyOfALongQueue: the rows before an event are not counted without a
// limit.
func TestWhyOfALongQueue(t *testing.T) {
	g := newGround(t, admin.Config{})
	ids := g.write("", 502)
	g.own()
	g.wants(g.why(ids[501]), "more than 500 earlier events of all lanes wait", admin.ReasonBehind)
	g.wants(g.why(ids[300]), "earlier events wait, the oldest for ", admin.ReasonBehind)
	if text := g.why(ids[300])[0].Text; strings.Contains(text, "more than") || strings.Contains(text, "300 ") {
		t.Errorf("events of other lanes are counted: %s", text)
	}
	g.wants(g.why(ids[0]), "It is in flight", admin.ReasonInFlight)
}

// TestWhyOfAReceiverThatDoesNotAnswer: an event that is first in its lane does
// not stay there for long.
func TestWhyOfAReceiverThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{})
		id := g.write("", 1)[0]
		node := g.own()
		pass(time.Minute)
		g.wants(g.why(id), "It is in flight: it is the first event of lane", admin.ReasonInFlight)
		pass(time.Second)
		g.wants(g.why(id), "It has been in flight for 1 min 1 s: it is the first event of lane", admin.ReasonInFlight)
		if r := g.why(id)[0]; !strings.Contains(r.Text, node.String()) || r.Commands[0] != "waybill doctor" {
			t.Errorf("%+v", r)
		}
	})
}

// TestWhyOfACapturedOutbox: no relay is missing.
func TestWhyOfACapturedOutbox(t *testing.T) {
	g := newGround(t, admin.Config{Captured: true})
	id := g.write("", 1)[0]
	g.wants(g.why(id), "Change data capture reads it", admin.ReasonCaptured)
}

// TestWhyOfAScheduledEvent: it waits for its time, and for a relay.
func TestWhyOfAScheduledEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{})
		ev := waybill.NewEvent("ReminderDue", 1)
		ev.ID, ev.Delay = waybill.NewID(), time.Hour
		box, err := outbox.New(g.db, outbox.Config{})
		g.must(err)
		g.must(box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) }))
		g.wants(g.why(ev.ID), "It is scheduled: it is due in 1 h.", admin.ReasonNoRelay, admin.ReasonScheduled)
		pass(2 * time.Hour)
		g.own()
		g.wants(g.why(ev.ID), "It has been in flight for 2 h", admin.ReasonInFlight)
	})
}

// unsure is a store that does not know what became of an event.
type unsure struct{ driver.OutboxAdmin }

// TestWhyOfAnUnknownEvent: the error says what may have become of it.
func TestWhyOfAnUnknownEvent(t *testing.T) {
	g := newGround(t, admin.Config{})
	id := waybill.NewID()
	var unknown *admin.UnknownEventError
	_, err := g.main.Journey(t.Context(), id)
	if !errors.As(err, &unknown) || !errors.Is(err, admin.ErrNotFound) || unknown.ID != id || unknown.Reason.Kind != admin.ReasonUnknown ||
		!strings.HasPrefix(unknown.Reason.Text, "It was never committed to these tables: its transaction was rolled back") ||
		!strings.Contains(unknown.Reason.Text, id.Time().UTC().Format(time.RFC3339)) || err.Error() != "admin: no such event: "+id.String() {
		t.Errorf("%+v", err)
	}
	_, err = newAdmin(t, unsure{g.roles.OutboxAdmin}, observe.Hooks{}).Journey(t.Context(), id)
	if !errors.As(err, &unknown) || !strings.Contains(unknown.Reason.Text, "or it was delivered and has been purged from the history.") {
		t.Errorf("without the role of an outbox: %+v", err)
	}
}

// TestWhyOfAnEventWithoutHistory: the tables do not know whether it was ever
// written.
func TestWhyOfAnEventWithoutHistory(t *testing.T) {
	g := newGround(t, admin.Config{})
	kept := g.write("", 1)[0]
	g.settled(true, nil)
	g.wants(g.why(kept), "It was delivered ", admin.ReasonDelivered)
	gone := g.write("", 1)[0]
	g.settled(false, nil)
	var unknown *admin.UnknownEventError
	_, err := g.main.Journey(t.Context(), gone)
	if !errors.As(err, &unknown) || !strings.Contains(unknown.Reason.Text, "or it was delivered and has been purged from the history.") {
		t.Errorf("%+v", err)
	}
}

// reports makes a node the owner of every lane, with a report. beat replaces
// the report.
func (g *ground) reports(troubles ...driver.Trouble) (beat func(troubles ...driver.Trouble)) {
	g.t.Helper()
	node := store.Node{ID: g.own(), Relay: "relay"}
	beat = func(troubles ...driver.Trouble) {
		node.Report = driver.EncodeNodeReport(&driver.NodeReport{Host: "h", StartedAt: time.Now(), At: time.Now(), Troubles: troubles}, 24*time.Hour)
		_, err := g.roles.Relay.Heartbeat(g.t.Context(), node, 24*time.Hour)
		g.must(err)
	}
	beat(troubles...)
	return beat
}

// TestWhyOfAPartThatIsDown: an event of another part does not wait for it, as
// far as that is known, and one of an unknown part does after a while.
func TestWhyOfAPartThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{})
		id := g.write("", 1)[0]
		now := time.Now()
		g.reports(
			driver.Trouble{Part: "other", State: driver.TroubleDown, Since: now.Add(-time.Hour), Error: "gone", NextProbe: now.Add(20 * time.Second)},
			driver.Trouble{Destination: "billing", State: driver.TroubleDown, Since: now.Add(-time.Minute), Error: "not here"},
		)
		g.wants(g.why(id), "It is in flight", admin.ReasonInFlight)
		pass(6 * time.Second)
		g.wants(g.why(id), "It waits: destination other has been down for 1 h: gone; the next probe is in 14 s.", admin.ReasonDown)
		if r := g.why(id)[0]; r.Commands[0] != "waybill doctor" || !r.Since.Equal(now.Add(-time.Hour)) || !r.Until.Equal(now.Add(20*time.Second)) {
			t.Errorf("%+v", r)
		}
		pass(20 * time.Second)
		g.wants(g.why(id), "It waits: destination other has been down for 1 h: gone; a probe is due.", admin.ReasonDown)
	})
}

// TestWhyOfAScheduledEventOfADestinationThatIsDown: an event that is due long
// after the next probe is scheduled; one that waits for the probe is not.
func TestWhyOfAScheduledEventOfADestinationThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{})
		ev := waybill.NewEvent("ReminderDue", 1)
		ev.ID, ev.Delay = waybill.NewID(), time.Hour
		box, err := outbox.New(g.db, outbox.Config{})
		g.must(err)
		g.must(box.InTx(t.Context(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) }))
		now := time.Now()
		down := driver.Trouble{State: driver.TroubleDown, Since: now, Error: "no broker", NextProbe: now.Add(8 * time.Second)}
		beat := g.reports(down)
		g.wants(g.why(ev.ID), "It is scheduled: it is due in 1 h.", admin.ReasonScheduled)
		pass(59*time.Minute + 30*time.Second)
		g.wants(g.why(ev.ID), "It is scheduled: it is due in 30 s.", admin.ReasonScheduled)
		down.NextProbe = time.Now().Add(40 * time.Second)
		beat(down)
		g.wants(g.why(ev.ID), "It waits: the destination has been down for 59 min: no broker; the next probe is in 40 s.", admin.ReasonDown)
	})
}

// TestWhyOfARate: the rate is told with the answer that lowered it, and an
// event that is not due waits for its time.
func TestWhyOfARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, admin.Config{})
		id := g.write("", 1)[0]
		g.reports(driver.Trouble{State: driver.TroubleLimited, Since: time.Now(), Error: "429 Too Many Requests.", Rate: 12.3456})
		pass(time.Minute)
		g.wants(g.why(id), "It waits: the destination has been rate-limited for 1 min, to 12.35 events per second and node: 429 Too Many Requests.", admin.ReasonLimited)
	})
}
