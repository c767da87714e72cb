package redisbroker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// silent is a client whose pipelines end without an answer to their commands.
type silent struct {
	redis.Hook

	err error
}

func (silent) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (silent) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s silent) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return s.err }
}

// TestOnlyAnIDConfirmsAnEntry: an entry without an answer is not published,
// whether or not the client reports an error for its pipeline. The relay
// delivers the event again, and counts no attempt.
func TestOnlyAnIDConfirmsAnEntry(t *testing.T) {
	for name, failure := range map[string]error{"an error of the pipeline": errors.New("dial tcp: connection refused"), "no error": nil} {
		client := plain(t, testserver.Redis(t))
		b, err := redisbroker.New(client, redisbroker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s := sink(t, b, redisbroker.SinkConfig{Topics: broker.OneTopic("silent-" + waybill.NewID().String())})
		client.AddHook(silent{err: failure})
		batch := []waybill.Delivery{
			{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1},
			{Event: eventfill.Defaults(waybill.NewEvent("x", 2)), Attempt: 1},
		}
		for i, err := range s.Deliver(t.Context(), batch) {
			if class, _ := waybill.Classify(err); class == waybill.ClassDone {
				t.Errorf("%s: event %d counts as published", name, i)
			}
		}
	}
}
