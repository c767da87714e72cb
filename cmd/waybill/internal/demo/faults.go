package demo

import (
	"fmt"
	"sync"
	"time"
)

// fault is something that goes wrong on purpose.
type fault int

// The faults, in the order of the way that an order takes.
const (
	answerLost fault = iota
	keyInParallel
	checkoutFails
	relayRestart
	outage
	pubackLost
	publishTwice
	brokerStop
	handlerError
	handlerPanic
	consumerCrash
	ackLost
	faultCount int = iota
)

// faultInfo is how a fault is shown: in the list of counts, and when it happens.
type faultInfo struct{ short, long string }

var faultInfos = [faultCount]faultInfo{
	answerLost:    {"lost answers", "an answer got lost after the commit"},
	keyInParallel: {"parallel repeats", "one order was sent three times at once"},
	checkoutFails: {"rollbacks", "a checkout failed after its writes"},
	relayRestart:  {"restarts", "the relay was stopped and replaced"},
	outage:        {"outages", "the destination is out of order"},
	pubackLost:    {"lost PubAcks", "a PubAck got lost: published again"},
	publishTwice:  {"doubled", "a message was published twice"},
	brokerStop:    {"stops", "the broker was stopped and restarted"},
	handlerError:  {"errors", "the handler failed after its writes"},
	handlerPanic:  {"panics", "the handler panicked after its writes"},
	consumerCrash: {"crashes", "the consumer died before its commit"},
	ackLost:       {"lost acks", "the consumer died before its ack"},
}

func (f fault) String() string { return faultInfos[f].short }

// faults knows which faults wait for their moment, and which have happened. Parts ask it where something can go wrong.
type faults struct {
	began time.Time
	log   *journal
	told  func(line string) // hears of every fault

	mu       sync.Mutex
	armed    [faultCount]int
	happened [faultCount]int
	last     string
}

// arm lets a fault happen at its next opportunity.
func (f *faults) arm(kind fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed[kind]++
}

// strikes reports whether a fault happens here and now.
func (f *faults) strikes(kind fault) bool {
	f.mu.Lock()
	if f.armed[kind] == 0 {
		f.mu.Unlock()
		return false
	}
	f.armed[kind]--
	f.mu.Unlock()
	f.note(kind)
	return true
}

// note writes down that a fault happened.
func (f *faults) note(kind fault) {
	after := time.Since(f.began)
	line := fmt.Sprintf("%s %s", clock(after), faultInfos[kind].long)
	f.mu.Lock()
	f.happened[kind]++
	f.last = line
	f.mu.Unlock()
	f.log.write(`INSERT INTO faults (kind, after_ms) VALUES (?, ?)`, kind.String(), after.Milliseconds())
	f.told(line)
}

// waiting reports whether a fault still waits for its moment.
func (f *faults) waiting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.armed != [faultCount]int{}
}

// disarm takes back what has not happened.
func (f *faults) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = [faultCount]int{}
}

// so returns what has happened so far, and the last of it.
func (f *faults) so() (counts [faultCount]int, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.happened, f.last
}

// clock shows how long something has taken, as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}
