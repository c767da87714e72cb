package idempotency

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
)

// Run purges expired records, and counts keys if an observer has a hook for
// that, until ctx ends; then it returns nil. Run retries failed operations: the
// log reports the start of an outage, once a minute its continuation, and its
// end. A second concurrent Run on the same Keys is an error. Any number of
// processes may run it.
func (k *Keys[T]) Run(ctx context.Context) error {
	if !k.running.CompareAndSwap(false, true) {
		return errors.New("idempotency: already running")
	}
	defer k.running.Store(false)
	// A process that restarts often purges, too.
	clean, stopClean := timer(min(k.cfg.PurgeInterval, time.Minute))
	defer stopClean()
	counts := k.cfg.CountInterval
	if k.cfg.Observe.Keys == nil {
		counts = -1
	}
	count, stopCount := timer(counts)
	defer stopCount()
	database := outage.New(k.cfg.Logger, "the idempotency keys' database")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clean.C:
			_, err := k.Purge(ctx)
			database.Note(ctx, "remove expired keys", err)
			clean.Reset(jittered(k.cfg.PurgeInterval))
		case <-count.C:
			database.Note(ctx, "count", k.count(ctx))
			count.Reset(jittered(counts))
		}
	}
}

// jittered returns a random duration around d, so that nodes do not act at the
// same time.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// timer returns a timer that fires after about d, or never if d is not
// positive.
func timer(d time.Duration) (*time.Timer, func() bool) {
	if d <= 0 {
		return &time.Timer{}, func() bool { return true }
	}
	t := time.NewTimer(jittered(d))
	return t, t.Stop
}

// Purge removes expired records, and answers that have outlived
// [Config.ResultRetention], and returns their number. It never touches a key
// that is in progress or uncertain.
func (k *Keys[T]) Purge(ctx context.Context) (int, error) {
	sum := 0
	for {
		n, err := k.db.PurgeKeys(ctx, k.cfg.PurgeBatchSize)
		if err != nil {
			return sum, storeError("purging", err)
		}
		sum += n
		if n > 0 && k.cfg.Observe.Purged != nil {
			k.cfg.Observe.Purged(observe.PurgedInfo{Kind: "keys", Rows: n})
		}
		if n < k.cfg.PurgeBatchSize {
			return sum, nil
		}
		if ctx.Err() != nil {
			return sum, context.Cause(ctx)
		}
	}
}

// count reports the number of keys by state to the observer.
func (k *Keys[T]) count(ctx context.Context) error {
	stats, err := k.db.KeyStats(ctx)
	if err != nil {
		return err
	}
	k.cfg.Observe.Keys(observe.KeysInfo{Processing: stats.Processing, Failed: stats.Failed, Uncertain: stats.Uncertain, Lapsed: stats.Lapsed})
	return nil
}
