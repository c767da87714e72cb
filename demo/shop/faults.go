package shop

import (
	"fmt"
	"sync"
	"time"
)

// fault is an injected fault.
type fault int

// The faults, in the order of an order's path.
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
	courierClosed
	faultCount int = iota
)

// faultInfo is the display of a fault: in the list of counts, and in messages.
type faultInfo struct{ short, long string }

var faultInfos = [faultCount]faultInfo{
	answerLost:    {"lost responses", "a response was lost after the commit"},
	keyInParallel: {"parallel repeats", "one order was sent three times at once"},
	checkoutFails: {"rollbacks", "a checkout failed after its writes"},
	relayRestart:  {"restarts", "the relay was stopped and replaced"},
	outage:        {"outages", "the destination is unavailable"},
	pubackLost:    {"lost acks", "an ack was lost: sent again"},
	publishTwice:  {"doubled", "an event was sent twice"},
	brokerStop:    {"stops", "the line was interrupted"},
	handlerError:  {"errors", "the handler failed after its writes"},
	handlerPanic:  {"panics", "the handler panicked after its writes"},
	consumerCrash: {"crashes", "the inventory died before its commit"},
	ackLost:       {"late crashes", "the inventory died after its commit"},
	courierClosed: {"closures", "the courier closed: its events wait"},
}

// infosFor returns the display of the faults of a line.
func infosFor(words Words) [faultCount]faultInfo {
	infos := faultInfos
	infos[pubackLost].long, infos[brokerStop].long, infos[consumerCrash].long, infos[ackLost].long = words.AckLost, words.Stop, words.Crash, words.DeadAfter
	return infos
}

func (f fault) String() string { return faultInfos[f].short }

// faults holds the armed faults and the counts of injected ones. The parts
// query it wherever a fault is possible.
type faults struct {
	began time.Time
	log   *journal
	told  func(line string) // called for every fault
	infos [faultCount]faultInfo

	mu       sync.Mutex
	armed    [faultCount]int
	happened [faultCount]int
	last     string
}

// arm injects a fault at its next opportunity.
func (f *faults) arm(kind fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed[kind]++
}

// strikes reports whether a fault occurs here and now.
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

// note records that a fault occurred.
func (f *faults) note(kind fault) {
	after := time.Since(f.began)
	line := fmt.Sprintf("%s %s", clock(after), f.infos[kind].long)
	f.mu.Lock()
	f.happened[kind]++
	f.last = line
	f.mu.Unlock()
	f.log.write(`INSERT INTO faults (kind, after_ms) VALUES (?, ?)`, kind.String(), after.Milliseconds())
	f.told(line)
}

// waiting reports whether a fault is still armed.
func (f *faults) waiting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.armed != [faultCount]int{}
}

// disarm removes all armed faults.
func (f *faults) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = [faultCount]int{}
}

// so returns the counts so far, and the last fault.
func (f *faults) so() (counts [faultCount]int, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.happened, f.last
}

// clock formats a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}
