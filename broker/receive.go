package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/backoff"
)

// answerTimeout bounds an answer to the broker. Answers outlive the source's context: what is committed is to be acknowledged.
const answerTimeout = 10 * time.Second

// firstPause is how long a source waits before it connects again for the first time.
const firstPause = 100 * time.Millisecond

// Receive is the Run of every source: it opens sessions, one after another, and lets a [Receiver] feed the consumer from each, until ctx ends. It returns
// nil then, and an error if open returns one of class Dead.
func Receive(ctx context.Context, name string, codec *Codec, c Consumer, cfg ReceiverConfig, open func(context.Context) (Session, error)) error {
	cfg, err := cfg.complete()
	if err != nil {
		return err
	}
	log := cfg.Logger.With("source", name)
	for failures := 0; ctx.Err() == nil; {
		taken, err := session(ctx, name, codec, c, cfg, open)
		if ctx.Err() != nil {
			return nil
		}
		if class, _ := waybill.Classify(err); class == waybill.Dead {
			return fmt.Errorf("broker: source %s: %w", name, err)
		}
		if taken {
			failures = 0
		}
		failures++
		pause := jitter(backoff.After(firstPause, cfg.ReconnectMax, failures), cfg.ReconnectMax)
		log.WarnContext(ctx, "the source has lost its broker and will connect again", "pause", pause, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// session runs one session to its end: until ctx ends, or the connection does. It reports whether a message was taken.
func session(ctx context.Context, name string, codec *Codec, c Consumer, cfg ReceiverConfig, open func(context.Context) (Session, error)) (bool, error) {
	s, err := open(ctx)
	if err != nil {
		return false, err
	}
	r := newReceiver(ctx, name, codec, c, cfg, s)
	r.start()
	err = s.Take(ctx, r)
	r.stop(ctx.Err() != nil)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	if cerr := s.Close(closing); cerr != nil {
		r.log.WarnContext(ctx, "the source's session did not close well", "error", cerr)
	}
	return r.taken.Load(), err
}

// jitter spreads a delay between half and one and a half of it, at most most.
func jitter(d, most time.Duration) time.Duration {
	return min(d/2+rand.N(d+1), most)
}
