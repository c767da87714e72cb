package kafkabroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
)

// Suspects are the records that existed when the member got the partition. No
// process can have crashed because of a later one.
func TestOnlyRecordsOfTheTimeBeforeAreSuspects(t *testing.T) {
	_, address := fake(t)
	s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{})
	got := make(chan waybill.Delivery, 16)
	send := func(n int) {
		t.Helper()
		for range n {
			if err := s.Deliver(t.Context(), []waybill.Delivery{event("orders", "a")})[0]; err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(n int, suspect bool) {
		t.Helper()
		for i := range n {
			select {
			case d := <-got:
				if d.Suspect != suspect {
					t.Errorf("record %d is a suspect: %v, want %v", i, d.Suspect, suspect)
				}
			case <-time.After(time.Minute):
				t.Fatalf("record %d has not come", i)
			}
		}
	}
	answer := &consumer{answer: func(_ context.Context, d waybill.Delivery) error {
		got <- d
		return nil
	}}
	send(3)
	stop := consume(t, address, answer, broker.ReceiverConfig{})
	want(3, true)
	send(2)
	want(2, false)
	stop()
	send(1)
	stop = consume(t, address, answer, broker.ReceiverConfig{})
	want(1, true)
	send(1)
	want(1, false)
	stop()
}
