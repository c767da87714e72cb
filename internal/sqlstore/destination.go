package sqlstore

import (
	"fmt"
	"slices"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The limits of package driver.
const (
	maxDestinations    = 31
	maxDestinationName = 64
)

// BaseLane is the number that the tables of the backlogs add to the lanes of a
// destination. All destinations of an outbox share these tables, and the
// highest lane of the last destination still fits 16 bits.
func BaseLane(number int) int { return number * MaxLanes }

// NewDestinations returns the destinations with these names that are not among
// the registered ones, each once, with the lowest free numbers.
func NewDestinations(registered []store.Destination, names []string) ([]store.Destination, error) {
	numbers, known := make(map[int]bool), make(map[string]bool)
	for _, d := range registered {
		numbers[d.Number], known[d.Name] = true, true
	}
	var added []store.Destination
	next := 1
	for _, name := range names {
		if name == "" || len(name) > maxDestinationName {
			return nil, fmt.Errorf("destination %q: the name has %d bytes, want 1 to %d", name, len(name), maxDestinationName)
		}
		if known[name] {
			continue
		}
		for numbers[next] {
			next++
		}
		if next > maxDestinations {
			return nil, fmt.Errorf("destination %q: %w: an outbox has at most %d", name, driver.ErrTooManyDestinations, maxDestinations)
		}
		numbers[next], known[name] = true, true
		added = append(added, store.Destination{Number: next, Name: name})
	}
	return added, nil
}

// AllRegistered reports whether each of the names is registered.
func AllRegistered(registered []store.Destination, names []string) bool {
	for _, name := range names {
		if !slices.ContainsFunc(registered, func(d store.Destination) bool { return d.Name == name }) {
			return false
		}
	}
	return true
}
