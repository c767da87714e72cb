package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Finish implements [driver.Finisher]. tx may belong to another [*sql.DB] on
// the same file. From here to its end, tx has the write lock, which a takeover
// needs too.
func (s *backend) Finish(ctx context.Context, tx *sql.Tx, done []waybill.Delivery) error {
	if len(done) == 0 {
		return nil
	}
	ctx, own, err := s.whose(ctx, tx)
	if err != nil {
		return err
	}
	t := txTarget{s, tx}
	if ctx, err = s.enter(ctx, t, own != nil); err != nil {
		return err
	}
	if err := s.fenced(ctx, t, done); err != nil {
		return err
	}
	return s.atOnce(ctx, t, func() error { return s.finish(ctx, t, done) })
}

// fenced returns an error unless every lane of the deliveries is still held
// under the lease of its claim.
func (s *backend) fenced(ctx context.Context, t txTarget, done []waybill.Delivery) error {
	var leases []driver.Lease
	for _, d := range done {
		lease := driver.LeaseOf(&d)
		if slices.Contains(leases, lease) {
			continue
		}
		leases = append(leases, lease)
		held, err := s.heldLanes(ctx, t, []driver.Lease{lease})
		if err != nil {
			return s.refused(err)
		}
		if len(held) == 0 {
			return fmt.Errorf("sqlitestore: finish: lane %d: %w", d.Position.Lane, waybill.ErrLeaseLost)
		}
	}
	return nil
}

// finish moves the events to the history or drops them, according to their
// claims.
func (s *backend) finish(ctx context.Context, t txTarget, done []waybill.Delivery) error {
	var kept, dropped []driver.Result
	for _, d := range done {
		result := driver.Result{Lane: d.Position.Lane, ID: d.ID}
		if driver.ClaimOf(&d).History {
			kept = append(kept, result)
		} else {
			dropped = append(dropped, result)
		}
	}
	w := settling{queue: &s.queue, t: t, now: clock(), held: []int{onlyLane}}
	if err := w.done(ctx, kept, true); err != nil || len(dropped) == 0 {
		return err
	}
	// The store does not remember the setting, because the transaction may
	// still be rolled back.
	if err := s.keepNoHistory(ctx, t); err != nil {
		return err
	}
	return w.done(ctx, dropped, false)
}
