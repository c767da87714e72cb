package kafkabroker

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker"
)

// offsets knows, for every partition that a session has, which records were taken and are not done. What may be committed is all before the first of those:
// Kafka remembers one number per partition, and a number that is too high loses messages.
type offsets struct {
	mu     sync.Mutex
	places map[string]map[int32]*partition
	count  uint64 // of partitions, ever
}

// partition is a partition from when it was assigned until it is taken away. When it comes back it is another one: answers for the former do not concern it.
type partition struct {
	topic     string
	number    int32
	serial    uint64
	open      []int64 // taken and not done, ascending. At most as many as may be in hand.
	next      int64   // behind the last that was taken
	committed int64   // what Kafka knows from us
	tenure    broker.Tenure
	end       int64 // of the partition when it was assigned: no member had a record from there on
}

// handle is what answers for a record.
type handle struct {
	partition *partition
	offset    int64
}

// order returns the place of a record: its offset, and then its partition, because records of one
// aggregate may be in several, with equal offsets.
func (h handle) order() (uint64, [2]uint64) {
	return uint64(h.offset) + 1, [2]uint64{h.partition.serial} //nolint:gosec // offsets begin at 0, and 0 would be no place at all
}

// tenure returns what makes a record a suspect, or nil if it came after the assignment.
func (h handle) tenure() *broker.Tenure {
	if h.offset >= h.partition.end {
		return nil
	}
	return &h.partition.tenure
}

// take notes that a record was taken. End is the end of its partition, as far as it is known now.
func (o *offsets) take(topic string, number int32, offset, end int64) handle {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.places[topic][number]
	if p == nil {
		if o.places == nil {
			o.places = make(map[string]map[int32]*partition)
		}
		if o.places[topic] == nil {
			o.places[topic] = make(map[int32]*partition)
		}
		o.count++
		p = &partition{topic: topic, number: number, serial: o.count, committed: offset, end: end}
		o.places[topic][number] = p
	}
	p.open, p.next = append(p.open, offset), offset+1
	return handle{p, offset}
}

// done notes that a record is.
func (o *offsets) done(h handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at, found := slices.BinarySearch(h.partition.open, h.offset); found {
		h.partition.open = slices.Delete(h.partition.open, at, at+1)
	}
}

// ready returns what may be committed and is not.
func (o *offsets) ready() map[string]map[int32]kgo.EpochOffset {
	o.mu.Lock()
	defer o.mu.Unlock()
	var found map[string]map[int32]kgo.EpochOffset
	for topic, places := range o.places {
		for number, p := range places {
			upTo := p.next
			if len(p.open) > 0 {
				upTo = p.open[0]
			}
			if upTo <= p.committed {
				continue
			}
			if found == nil {
				found = make(map[string]map[int32]kgo.EpochOffset)
			}
			if found[topic] == nil {
				found[topic] = make(map[int32]kgo.EpochOffset)
			}
			found[topic][number] = kgo.EpochOffset{Epoch: -1, Offset: upTo}
		}
	}
	return found
}

// commit notes that Kafka knows.
func (o *offsets) commit(known map[string]map[int32]kgo.EpochOffset) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, places := range known {
		for number, at := range places {
			if p := o.places[topic][number]; p != nil {
				p.committed = max(p.committed, at.Offset)
			}
		}
	}
}

// forget ends partitions: nothing is committed for them any more, whatever is still in hand.
func (o *offsets) forget(gone map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, numbers := range gone {
		for _, n := range numbers {
			delete(o.places[topic], n)
		}
	}
}
