package linear

import (
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// relayOp is the kind of an operation of the relay's model.
type relayOp string

const (
	// opBeat is the part of a heartbeat that writes the node's lease, and
	// opLook the part that reads a lane. The contract does not require that
	// both happen at the same moment.
	opBeat    relayOp = "heartbeat"
	opLook    relayOp = "look"
	opAcquire relayOp = "acquire"
	opRelease relayOp = "release"
	opLeave   relayOp = "leave"
	// opFence is the part of a settlement that checks the lease of a lane, and
	// opSettle the part that settles an event. A settlement skips rows that do
	// not exist any more, so the model checks one event at a time.
	opFence   relayOp = "check fence"
	opSettle  relayOp = "settle"
	opFind    relayOp = "find"
	opReplay  relayOp = "replay"
	opDiscard relayOp = "discard"
)

// relayInput is an operation, with the fields that its kind needs.
type relayInput struct {
	op   relayOp
	span span
	node int // from 1
	live bool
	// window is the argument of an acquisition.
	window int
	lease  driver.Lease
	dirty  bool
	// The result of an event: the state that it gets, and its arguments.
	state    store.State
	history  bool
	attempts int
	replay   int
}

// relayOutput is the answer of an operation.
type relayOutput struct {
	// granted is the lease that an acquisition returned; refused means that the
	// node itself was not live.
	granted *driver.Lease
	refused bool
	// owner and epoch are the lane in a heartbeat's answer.
	owner int
	epoch int64
	// held and moved are the answer of a settlement. moved is also the answer
	// of opReplay and opDiscard.
	held, moved bool
	found       event
}

// relayState is the state of the nodes, of one lane, and of one of its events.
// It has no pointers, so that states can be compared.
type relayState struct {
	nodes [clients + 1]node
	lane  lane
	event event
	// moved is the end of the last call that changed the event.
	moved int64
}

// node is a node's lease. since is the end of the call that made it live.
type node struct {
	live  bool
	since int64
}

// lane is a lane. owner is 0 for a released lane. token is zero if the answer
// of the acquisition was lost: no client knows it.
type lane struct {
	owner  int
	epoch  number
	token  waybill.ID
	dirty  bool
	window int
	// changed is the end of the last call that changed the lane.
	changed int64
}

// event is an event's row. The number of attempts of a delivered event is not
// compared: not every store keeps it.
type event struct {
	exists   bool
	state    store.State
	attempts int
	replay   int
}

func (e event) pending() bool {
	return e.exists && (e.state == store.Ready || e.state == store.Delayed)
}

func (e event) String() string {
	if !e.exists {
		return "gone"
	}
	return fmt.Sprintf("%s attempts=%d replay=%d", e.state, e.attempts, e.replay)
}

// relayModel is the contract of driver.Lanes, driver.Settler and
// driver.DeadLetters for one lane and one event that is ready.
var relayModel = model{
	start: relayState{lane: lane{epoch: number{min: -1, unknown: true}}, event: event{exists: true, state: store.Ready}},
	step: func(state any, in operation, out any) []any {
		var next []any
		for _, s := range state.(relayState).step(in.(relayInput), out.(relayOutput)) {
			next = append(next, s)
		}
		return next
	},
	describe: func(in operation, out any) string { return in.(relayInput).describe(out.(relayOutput)) },
}

// step returns the states after an operation; none if the contract does not
// allow the answer.
func (s relayState) step(in relayInput, out relayOutput) []relayState {
	one := func(ok bool) []relayState {
		if !ok {
			return nil
		}
		return []relayState{s}
	}
	switch in.op {
	case opBeat:
		n := &s.nodes[in.node]
		if in.live && !n.live {
			n.since = in.span.end
		}
		n.live = in.live
		return one(true)
	case opLook:
		ok := s.lane.owner == out.owner && s.lane.epoch.admits(out.epoch)
		s.lane.epoch = exactly(out.epoch)
		return one(ok)
	case opAcquire:
		return s.acquire(in, out)
	case opRelease:
		if s.holds(in.lease) {
			s.free(in.dirty, in.span)
		}
		return one(true)
	case opLeave:
		s.nodes[in.node].live = false
		if s.lane.owner == in.node {
			s.free(true, in.span)
		}
		return one(true)
	case opFence:
		return one(s.holds(in.lease) == out.held)
	case opSettle:
		return s.settle(in, out)
	case opFind:
		return one(s.event.same(out.found))
	case opReplay, opDiscard:
		return s.deadLetter(in, out)
	}
	panic("linear: no operation is called " + string(in.op))
}

// free takes the lane from its owner.
func (s *relayState) free(dirty bool, at span) {
	s.lane.owner, s.lane.token, s.lane.dirty, s.lane.changed = 0, waybill.ID{}, dirty, at.end
}

// holds reports whether a lease is the lane's current one.
func (s *relayState) holds(l driver.Lease) bool {
	return s.lane.owner != 0 && s.lane.epoch == exactly(l.Epoch) && s.lane.token == l.Token
}

// acquire judges which nodes are live at one moment of the call and takes the
// lane at a later one: it waits for settlements in between. So it may take the
// lane of an owner that became live during the call, and it may skip a lane
// that changed during the call.
func (s relayState) acquire(in relayInput, out relayOutput) []relayState {
	owner := s.nodes[s.lane.owner]
	live := s.nodes[in.node].live
	free := s.lane.owner == 0 || !owner.live
	could := live && (free || owner.since > in.span.call)
	taken := s
	taken.lane = lane{owner: in.node, epoch: s.lane.epoch.next(), window: in.window, changed: in.span.end}
	switch {
	case in.span.lost() && could && free:
		return []relayState{taken}
	case in.span.lost() && could:
		return []relayState{s, taken}
	case in.span.lost():
		return []relayState{s}
	case out.refused && !live:
		return []relayState{s}
	case out.refused:
		return nil
	case out.granted == nil && live && (!free || s.lane.changed > in.span.call):
		return []relayState{s}
	case out.granted == nil || !could:
		return nil
	}
	l := *out.granted
	unclean := s.lane.dirty || s.lane.owner != 0
	if l.Epoch <= s.lane.epoch.min || l.Token.IsZero() || l.Unclean != unclean || l.Window != s.lane.window {
		return nil
	}
	taken.lane.epoch, taken.lane.token = exactly(l.Epoch), l.Token
	return []relayState{taken}
}

// settle settles the event. It may skip a row that another call changed during
// the settlement.
func (s relayState) settle(in relayInput, out relayOutput) []relayState {
	held := s.holds(in.lease)
	fits := held && s.event.pending() && (in.state == store.Delivered || in.replay == s.event.replay)
	raced := held && s.moved > in.span.call
	switch {
	case in.span.lost() && !fits:
		return []relayState{s}
	case !in.span.lost() && out.held != held, !in.span.lost() && out.moved && !fits:
		return nil
	case !in.span.lost() && !out.moved:
		if fits && !raced {
			return nil
		}
		return []relayState{s}
	}
	settled := s
	settled.moved = in.span.end
	settled.event.state, settled.event.attempts = in.state, in.attempts
	if in.state == store.Delivered {
		settled.event = event{exists: in.history, state: store.Delivered, replay: s.event.replay}
	}
	if in.span.lost() && raced {
		return []relayState{s, settled}
	}
	return []relayState{settled}
}

func (e event) same(other event) bool {
	switch {
	case e.exists != other.exists:
		return false
	case !e.exists:
		return true
	case e.state == store.Delivered:
		return other.state == store.Delivered
	}
	return e == other
}

// deadLetter replays or discards a dead letter.
func (s relayState) deadLetter(in relayInput, out relayOutput) []relayState {
	fits := s.event.exists && s.event.state == store.Dead
	switch {
	case !in.span.lost() && out.moved != fits:
		return nil
	case fits && in.op == opDiscard:
		s.event, s.moved = event{}, in.span.end
	case fits:
		s.event, s.moved = event{exists: true, state: store.Delayed, replay: s.event.replay + 1}, in.span.end
	}
	return []relayState{s}
}

func (s relayState) String() string {
	var live []int
	for i, n := range s.nodes {
		if n.live {
			live = append(live, i)
		}
	}
	return fmt.Sprintf("live %v; owner %d epoch %s token %s dirty %t window %d; event %s",
		live, s.lane.owner, s.lane.epoch, short(s.lane.token), s.lane.dirty, s.lane.window, s.event)
}

// short returns the end of an id, which is random.
func short(id waybill.ID) string {
	if id.IsZero() {
		return "none"
	}
	text := id.String()
	return text[len(text)-4:]
}

func leaseText(l driver.Lease) string {
	return fmt.Sprintf("epoch %d token %s", l.Epoch, short(l.Token))
}

func (in relayInput) describe(out relayOutput) string {
	var ask, answer string
	switch in.op {
	case opBeat:
		ask = fmt.Sprintf("node %d, live %t", in.node, in.live)
	case opLook:
		answer = fmt.Sprintf("owner %d epoch %d", out.owner, out.epoch)
	case opAcquire:
		ask = fmt.Sprintf("node %d, window %d", in.node, in.window)
		switch {
		case out.refused:
			answer = "refused"
		case out.granted == nil:
			answer = "not acquired"
		default:
			answer = fmt.Sprintf("%s unclean %t window %d", leaseText(*out.granted), out.granted.Unclean, out.granted.Window)
		}
	case opRelease:
		ask = fmt.Sprintf("%s, dirty %t", leaseText(in.lease), in.dirty)
	case opLeave:
		ask = fmt.Sprintf("node %d", in.node)
	case opFence:
		ask, answer = leaseText(in.lease), fmt.Sprintf("held %t", out.held)
	case opSettle:
		ask = fmt.Sprintf("%s, %s attempts=%d replay=%d history=%t", leaseText(in.lease), in.state, in.attempts, in.replay, in.history)
		answer = fmt.Sprintf("held %t moved %t", out.held, out.moved)
	case opFind:
		answer = out.found.String()
	case opReplay, opDiscard:
		answer = fmt.Sprintf("moved %t", out.moved)
	}
	return describe(string(in.op), ask, answer, in.span)
}

// describe returns the text of an operation.
func describe(op, ask, answer string, s span) string {
	switch {
	case s.lost():
		answer = "answer lost"
	case answer == "":
		answer = "done"
	}
	return fmt.Sprintf("%s(%s) -> %s", op, ask, answer)
}

// readOnly are the operations that change nothing: without an answer they say
// nothing.
func readOnly(op relayOp) bool { return slices.Contains([]relayOp{opLook, opFence, opFind}, op) }

func (in relayInput) isLost() bool { return in.span.lost() }

func (in relayInput) forget() (lost operation, changes bool) {
	in.span.end = never
	return in, !readOnly(in.op)
}
