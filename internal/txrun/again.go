package txrun

import (
	"context"
	"time"
)

// restarts is how often a transaction is run again that the database gave up because of others.
const restarts = 10

// RunAgain is Run, again if it fails with an error that is restartable: the database gave the transaction up because of others.
func (r *Runner[T]) RunAgain(ctx context.Context, restartable func(error) bool, fn func(ctx context.Context, tx T) error) error {
	for n := 1; ; n++ {
		err := r.Run(ctx, nil, fn)
		if err == nil || n > restarts || !restartable(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(n) * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
