// Package sqlstore holds the rules that the SQL stores share: the limits of
// their configuration, the order of migrations, the claim of a sink, and the
// arguments of a purge. It contains no SQL.
package sqlstore

import (
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlname"
	"github.com/waybillhq/waybill/store"
)

// Limits of the number of lanes.
const (
	DefaultLanes = 32
	MaxLanes     = 1024
)

// CheckTables returns the errors of the fields Schema, Prefix and Lanes of a
// store's Config, in this order.
func CheckTables(schema, prefix string, lanes int) []error {
	var errs []error
	if schema != "" {
		if err := sqlname.Check("Config.Schema", schema); err != nil {
			errs = append(errs, err)
		}
	}
	if err := sqlname.CheckPrefix("Config.Prefix", prefix); err != nil {
		errs = append(errs, err)
	}
	if lanes < 0 || lanes > MaxLanes {
		errs = append(errs, fmt.Errorf("Config.Lanes: %d is not between 1 and %d", lanes, MaxLanes))
	}
	return errs
}

// CheckPurge returns an error if events in this state, or of this age, cannot
// be purged.
func CheckPurge(state store.State, age time.Duration) error {
	switch state {
	case store.Delivered, store.Dead:
	case store.Ready, store.Delayed:
		return fmt.Errorf("purge: %v events are pending and cannot be purged", state)
	default:
		return fmt.Errorf("purge: unknown state %v", state)
	}
	return CheckAge(age)
}

// CheckAge returns an error if the minimum age of a purge is negative.
func CheckAge(age time.Duration) error {
	if age < 0 {
		return fmt.Errorf("purge: negative age %v", age)
	}
	return nil
}

// WholeSecond rounds a time up to whole seconds, in UTC. The history is
// complete from a whole second on.
func WholeSecond(t time.Time) time.Time { return roundUp(t, time.Second) }

// WholeMicrosecond rounds a bound up to whole microseconds, in UTC. The times
// of rows are whole microseconds, so each is before both or before neither.
func WholeMicrosecond(t time.Time) time.Time { return roundUp(t, time.Microsecond) }

func roundUp(t time.Time, unit time.Duration) time.Time {
	whole := t.UTC().Truncate(unit)
	if whole.Before(t) {
		whole = whole.Add(unit)
	}
	return whole
}

// InOrder returns the ids that are in done, each once, in the order of ids. It
// removes them from done.
func InOrder(ids []waybill.ID, done map[waybill.ID]bool) []waybill.ID {
	var list []waybill.ID
	for _, id := range ids {
		if done[id] {
			list = append(list, id)
			delete(done, id)
		}
	}
	return list
}
