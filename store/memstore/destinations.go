package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// destination is a registered destination and its backlog.
type destination struct {
	store.Destination
	rowSet
}

// destination returns the destination with a number, or nil; mu is held.
func (t *tables) destination(number int) *destination {
	if number < 1 || number >= len(t.destinations) {
		return nil
	}
	return t.destinations[number]
}

// lookup returns the destination with a name; mu is held.
func (t *tables) lookup(name string) (*destination, error) {
	i := slices.IndexFunc(t.destinations[:], func(d *destination) bool { return d != nil && d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w: %q", driver.ErrNoDestination, name)
	}
	return t.destinations[i], nil
}

// AddDestinations implements [driver.Backlogs].
func (t *tables) AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error) {
	for _, name := range names {
		if name == "" || len(name) > driver.MaxDestinationName {
			return nil, fmt.Errorf("memstore: destinations: the name %q has %d bytes, not between 1 and %d", name, len(name), driver.MaxDestinationName)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before, now, added := t.destinations, clock(), 0
	for _, name := range names {
		if _, err := t.lookup(name); err == nil {
			continue
		}
		free := slices.Index(t.destinations[1:], nil) + 1
		if free == 0 {
			t.destinations = before
			return nil, fmt.Errorf("memstore: destinations: %w: no number is left for %q", driver.ErrTooManyDestinations, name)
		}
		t.destinations[free] = &destination{
			Destination: store.Destination{Number: free, Name: name, CreatedAt: now}, rowSet: newRowSet(len(t.lanes)),
		}
		added++
	}
	t.note(ctx, added)
	var all []store.Destination
	for _, d := range t.destinations {
		if d != nil {
			all = append(all, d.Destination)
		}
	}
	return all, nil
}

// PauseDestination implements [driver.Backlogs].
func (t *tables) PauseDestination(ctx context.Context, name, reason string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, err := t.lookup(name)
	if err != nil {
		return false, fmt.Errorf("memstore: pause: %w", err)
	}
	if d.IsPaused() {
		return false, nil
	}
	d.PausedAt, d.Reason = clock(), driver.CutError(reason)
	t.note(ctx, 1)
	return true, nil
}

// ResumeDestination implements [driver.Backlogs].
func (t *tables) ResumeDestination(ctx context.Context, name string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, err := t.lookup(name)
	if err != nil {
		return false, fmt.Errorf("memstore: resume: %w", err)
	}
	if !d.IsPaused() {
		return false, nil
	}
	d.PausedAt, d.Reason = time.Time{}, ""
	t.note(ctx, 1)
	return true, nil
}

// ProbeDestination implements [driver.Backlogs].
func (t *tables) ProbeDestination(ctx context.Context, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, err := t.lookup(name)
	if err != nil {
		return fmt.Errorf("memstore: probe: %w", err)
	}
	d.ProbeAt = clock()
	t.note(ctx, 1)
	return nil
}

// RemoveDestination implements [driver.Backlogs].
func (t *tables) RemoveDestination(ctx context.Context, name string) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, err := t.lookup(name)
	if err != nil {
		return 0, fmt.Errorf("memstore: remove: %w", err)
	}
	if t.relayLive() {
		return 0, fmt.Errorf("memstore: remove: %w", store.ErrRelayLive)
	}
	t.destinations[d.Number] = nil
	t.note(ctx, len(d.rows)+1)
	return int64(len(d.rows)), nil
}
