package txrun

import (
	"context"
	"time"
)

// restarts is the number of times a transaction is run again after a conflict.
const restarts = 10

// RunAgain is Run, and runs again after an error that is restartable: the
// transaction failed because of a conflict with others.
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
