package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Restored is the state of an outbox after its database was restored from a
// backup.
type Restored struct {
	// Epochs and Seqs are by how much the epoch of every lane and the sequence
	// of the outbox were raised: positions that were issued after the backup
	// are not issued again for other events.
	Epochs, Seqs int64
	// Pending is the number of events that the backup has as pending, in the
	// outbox and in the backlogs of all destinations. Those that were delivered
	// after the backup are delivered again, with the same ids.
	Pending int64
	// Since and Until are the write times of the oldest pending event and of
	// the newest event of the backup: events that were written in between may
	// be delivered again. Events that were written after Until are lost,
	// although consumers may have received them. Since is zero if no event is
	// pending, and Until if the backup has no event.
	Since, Until time.Time
}

// Restored prepares an outbox whose database was restored from a backup, before
// relays and writers use it: it raises the epoch of every lane and the sequence
// beyond everything that was issued after the backup. Without that, positions
// are issued twice, and consumers drop new events as stale.
//
// While a relay is live, Restored returns [store.ErrRelayLive]. The backup may
// have relays that look alive until their leases end; force ignores them. With
// force, no relay may run.
func (d *Outbox) Restored(ctx context.Context, force bool) (Restored, error) {
	if err := d.whole("continuing after a restoration"); err != nil {
		return Restored{}, err
	}
	if d.restorer == nil {
		return Restored{}, errors.New("admin: restored: the store does not have the role Restorer")
	}
	out := Restored{Epochs: driver.RestoreEpochs, Seqs: driver.RestoreSeqs}
	if err := d.inspectBackup(ctx, &out); err != nil {
		return Restored{}, err
	}
	if err := d.restorer.Restored(audited(ctx, "restored", "", fields("", "force", map[bool]string{true: "yes"}[force])), force); err != nil {
		return Restored{}, fmt.Errorf("admin: restored: %w", err)
	}
	d.wake(1)
	return out, nil
}

// inspectBackup finds what may be delivered again.
func (d *Outbox) inspectBackup(ctx context.Context, out *Restored) error {
	parts := []*Outbox{d}
	if d.backlogs != nil {
		all, err := d.backlogs.AddDestinations(ctx)
		if err != nil {
			return fmt.Errorf("admin: restored: %w", err)
		}
		for _, to := range all {
			parts = append(parts, d.at(to))
		}
	}
	for _, part := range parts {
		for _, state := range []store.State{store.Ready, store.Delayed} {
			if err := part.addPending(ctx, state, out); err != nil {
				return err
			}
		}
	}
	newest, err := d.newest(ctx)
	out.Until = newest.CreatedAt
	return err
}

// addPending adds the pending events of a state to what may be delivered again.
func (d *Outbox) addPending(ctx context.Context, state store.State, out *Restored) error {
	n, err := d.Count(ctx, state, store.Filter{})
	if err != nil {
		return err
	}
	out.Pending += n
	first, err := d.List(ctx, state, store.Filter{}, 0, 1)
	if err != nil {
		return err
	}
	for _, r := range first.Records {
		if out.Since.IsZero() || r.CreatedAt.Before(out.Since) {
			out.Since = r.CreatedAt
		}
	}
	return nil
}

// newest returns the event with the highest seq, in any state; a zero record if
// there is no event.
func (d *Outbox) newest(ctx context.Context) (store.Record, error) {
	var last store.Record
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered} {
		// Bisection: rows may exist after low, and none after high.
		for low, high := last.Seq, int64(math.MaxInt64); low < high; {
			middle := low + (high-low)/2
			page, err := d.List(ctx, state, store.Filter{}, middle, 1)
			if err != nil {
				return last, err
			}
			if len(page.Records) == 0 {
				high = middle
				continue
			}
			last = page.Records[0]
			low = last.Seq
		}
	}
	return last, nil
}
