package driver

import (
	"errors"

	"github.com/waybillhq/waybill"
)

// errBehind is the result of an event that was not published because an earlier
// one was not. The relay ignores this error.
var errBehind = errors.New("broker: an earlier event of the aggregate was not published")

// PublishInOrder implements Deliver for a sink that publishes many messages at
// once and gets one result for each. PublishInOrder calls publish with the
// indices of events that may be in flight together: at most one per aggregate.
// When all results of a wave are known, the next wave follows, without the
// aggregates that have a failed event. The sink may therefore guarantee that an
// aggregate stops at its first failure, in whatever order the broker confirms.
//
// publish must set results[i] for every i in wave.
func PublishInOrder(batch []waybill.Delivery, publish func(wave []int, results []error)) []error {
	results := make([]error, len(batch))
	wave := make([]int, 0, len(batch))
	rest := make([]int, len(batch))
	for i := range rest {
		rest[i] = i
	}
	stopped := make(map[aggregate]bool)
	for len(rest) > 0 {
		wave = wave[:0]
		inWave := make(map[aggregate]bool, len(rest))
		later := rest[:0]
		for _, i := range rest {
			a := aggregateOf(&batch[i].Event)
			switch {
			case a.id == "":
				wave = append(wave, i)
			case stopped[a]:
				results[i] = waybill.Later(0, errBehind)
			case inWave[a]:
				later = append(later, i)
			default:
				inWave[a] = true
				wave = append(wave, i)
			}
		}
		if len(wave) > 0 {
			publish(wave, results)
		}
		for _, i := range wave {
			if a := aggregateOf(&batch[i].Event); a.id != "" && results[i] != nil {
				stopped[a] = true
			}
		}
		rest = later
	}
	return results
}

type aggregate struct{ tenant, kind, id string }

func aggregateOf(ev *waybill.Event) aggregate {
	return aggregate{ev.TenantID, ev.AggregateType, ev.AggregateID}
}
