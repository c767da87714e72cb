package kafkabroker

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill/broker/driver"
)

// offsets tracks, for every partition of a session, the records that were taken
// and are not done. A commit may cover everything before the first of those:
// Kafka stores one offset per partition, and an offset that is too high loses
// messages.
type offsets struct {
	mu     sync.Mutex
	places map[string]map[int32]*partition
	count  uint64 // partitions so far
}

// partition is a partition from its assignment until it is revoked. After a
// reassignment it is a new partition, and answers for the former one do not
// affect it.
type partition struct {
	topic  string
	number int32
	serial uint64
	// open holds the records that were taken and are not done, ascending: at
	// most as many as may be in flight.
	open      []int64
	next      int64 // offset after the last record that was taken
	committed int64 // last offset that was committed
	tenure    driver.Tenure
	// end is the end of the partition at its assignment: no other member has
	// had a record at or after it.
	end int64
}

// handle identifies a record for its answer.
type handle struct {
	partition *partition
	offset    int64
}

// order returns the position of a record: its offset, then its partition,
// because records of one aggregate may be in several partitions with equal
// offsets.
func (h handle) order() (uint64, [2]uint64) {
	return uint64(h.offset) + 1, [2]uint64{h.partition.serial} //nolint:gosec // offsets begin at 0, and 0 would be no place at all
}

// tenure returns the tenure that makes a record a suspect, or nil if the record
// was written after the assignment.
func (h handle) tenure() *driver.Tenure {
	if h.offset >= h.partition.end {
		return nil
	}
	return &h.partition.tenure
}

// take records that a message was taken. end is the end of its partition, as
// far as known.
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

// done records that a message is done.
func (o *offsets) done(h handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at, found := slices.BinarySearch(h.partition.open, h.offset); found {
		h.partition.open = slices.Delete(h.partition.open, at, at+1)
	}
}

// ready returns the offsets that may be committed and are not.
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

// commit records that Kafka has stored the offsets.
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

// forget ends partitions: nothing is committed for them any more, even if
// messages are still in flight.
func (o *offsets) forget(gone map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, numbers := range gone {
		for _, n := range numbers {
			delete(o.places[topic], n)
		}
	}
}
