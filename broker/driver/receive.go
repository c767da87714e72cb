package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/backoff"
	"github.com/waybillhq/waybill/internal/outage"
)

// answerTimeout bounds an answer to the broker. Answers outlive the source's
// context, because committed messages must be acknowledged.
const answerTimeout = 10 * time.Second

// firstPause is the delay before the first reconnect of a source.
const firstPause = 100 * time.Millisecond

// lastingSession is how long a session must last before the log reports that
// the source is connected again: a broker may accept clients and disconnect
// them at once.
const lastingSession = time.Second

// errEnded is the logged reason if a session ended without an error.
var errEnded = errors.New("session ended")

// Receive implements Run for every source: it opens sessions, one after
// another, and lets a [Receiver] feed the consumer from each, until ctx ends.
// Receive then returns nil. It returns an error if open returns a permanent
// one.
func Receive(ctx context.Context, name string, codec *broker.Codec, c waybill.Sink, cfg broker.ReceiverConfig, open func(context.Context) (Session, error)) error {
	cfg, err := cfg.Complete()
	if err != nil {
		return fmt.Errorf("broker: source %s: %w", name, err)
	}
	connection := outage.New(cfg.Logger, "the source's connection", "source", name)
	for failures := 0; ctx.Err() == nil; {
		taken, err := session(ctx, name, codec, c, cfg, open, connection)
		if ctx.Err() != nil {
			return nil
		}
		if class, _ := waybill.Classify(err); class == waybill.ClassPermanent {
			return fmt.Errorf("broker: source %s: %w", name, err)
		}
		if taken {
			failures = 0
		}
		failures++
		pause := jitter(backoff.After(firstPause, cfg.ReconnectMax, failures), cfg.ReconnectMax)
		connection.Failed("receive", cmp.Or(err, errEnded))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// session runs one session until ctx or the connection ends. It reports whether
// a message was received.
func session(ctx context.Context, name string, codec *broker.Codec, c waybill.Sink, cfg broker.ReceiverConfig, open func(context.Context) (Session, error),
	connection *outage.Log,
) (bool, error) {
	s, err := open(ctx)
	if err != nil {
		return false, err
	}
	r := newReceiver(ctx, name, codec, c, cfg, s)
	r.start()
	lasts := time.AfterFunc(lastingSession, func() { connection.Succeeded("receive") })
	err = s.Take(ctx, r)
	lasts.Stop()
	r.stop(ctx.Err() != nil)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	if cerr := s.Close(closing); cerr != nil {
		r.log.WarnContext(ctx, "closing the session of the source failed", "error", cerr)
	}
	return r.taken.Load(), err
}

// jitter returns a random delay between 0.5·d and 1.5·d, but at most limit.
func jitter(d, limit time.Duration) time.Duration {
	return min(d/2+rand.N(d+1), limit)
}
