package driver_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// If the broker does not count deliveries, the suspects are the messages that a
// crashed process may have had in flight: as many as MaxInFlight, not counting
// those that were done before, of which there may be any number. If the broker
// counts deliveries, the suspects are redelivered messages, until this process
// has survived an attempt.
func TestSuspects(t *testing.T) {
	const window = 3
	replayed, later, dead := waybill.ErrReplayed, waybill.Later(time.Hour, errBoom), waybill.Permanent(errBoom)
	for name, c := range map[string]struct {
		counted    bool
		attempt    int              // the broker's count
		aggregates string           // one letter per message
		answers    map[string]error // by message
		want       string           // in order of handling; suspects have an exclamation mark
	}{
		"the broker counts":            {counted: true, aggregates: "abcdef", want: "1 2 3 4 5 6"},
		"delivered before":             {counted: true, attempt: 2, aggregates: "aab", answers: map[string]error{"1": later}, want: "1! 3! 1 2!"},
		"the first":                    {aggregates: "abcdef", want: "1! 2! 3! 4 5 6"},
		"done before":                  {aggregates: "abcdefgh", answers: map[string]error{"1": replayed, "2": replayed, "4": replayed, "5": replayed}, want: "1! 2! 3! 4! 5! 6! 7! 8"},
		"dead-lettered":                {aggregates: "abcdefgh", answers: map[string]error{"1": dead, "3": dead}, want: "1! 2! 3! 4! 5! 6 7 8"},
		"late, and messages behind it": {aggregates: "aabcd", answers: map[string]error{"1": later}, want: "1! 3! 4! 5! 1! 2!"},
		"late, behind the window":      {aggregates: "abcdd", answers: map[string]error{"4": later}, want: "1! 2! 3! 4 4 5"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tenure driver.Tenure
				var ms []*driver.Incoming
				for i, a := range c.aggregates {
					m := message(t, string(a), uint64(i+1), 0)
					if !c.counted {
						m.Tenure = &tenure
					}
					m.Attempt = c.attempt
					ms = append(ms, m)
				}
				var mu sync.Mutex
				var got []string
				seen := make(map[string]bool)
				stop := receive(t, &script{take: put(ms...)}, consumer(func(_ context.Context, d waybill.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					n := strings.TrimPrefix(d.Type, "n")
					mark := ""
					if d.Suspect {
						mark = "!"
					}
					got = append(got, n+mark)
					if d.Uncounted {
						t.Errorf("message %s has no count", n)
					}
					if seen[n] {
						return nil
					}
					seen[n] = true
					return c.answers[n]
				}), broker.ReceiverConfig{Workers: 1, BatchSize: 1, MaxInFlight: window})
				pass(2 * time.Hour)
				stop()
				if text := strings.Join(got, " "); text != c.want {
					t.Errorf("handled %s, want %s", text, c.want)
				}
			})
		})
	}
}

// Two partitions have separate tenures: the messages of one do not affect the
// other.
func TestSuspectsOfEachTenure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var one, two driver.Tenure
		var ms []*driver.Incoming
		for i := range 8 {
			m := message(t, fmt.Sprint(i), uint64(i+1), 0)
			m.Tenure = &one
			if i >= 5 {
				m.Tenure = &two
			}
			ms = append(ms, m)
		}
		var got []string
		stop := receive(t, &script{take: put(ms...)}, consumer(func(_ context.Context, d waybill.Delivery) error {
			got = append(got, fmt.Sprint(d.Suspect))
			return nil
		}), broker.ReceiverConfig{Workers: 1, BatchSize: 1, MaxInFlight: 2})
		pass(time.Minute)
		stop()
		if text := strings.Join(got, " "); text != "true true false false false true true false" {
			t.Errorf("suspects: %s", text)
		}
	})
}
