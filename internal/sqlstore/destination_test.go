package sqlstore_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func TestBaseLane(t *testing.T) {
	if base := sqlstore.BaseLane(1); base < sqlstore.MaxLanes {
		t.Errorf("the first destination begins at lane %d, among the lanes of the outbox", base)
	}
	if last := sqlstore.BaseLane(driver.MaxDestinations) + sqlstore.MaxLanes - 1; last > math.MaxInt16 {
		t.Errorf("the last lane %d does not fit 16 bits", last)
	}
}

// TestNewDestinations: new destinations fill the gaps, an unregistered name
// that is given twice is one destination, and names compare as bytes.
func TestNewDestinations(t *testing.T) {
	registered := []store.Destination{{Number: 2, Name: "b"}, {Number: 4, Name: "d"}}
	got, err := sqlstore.NewDestinations(registered, []string{"B", "b", "x", "x", "é", "d"})
	want := []store.Destination{{Number: 1, Name: "B"}, {Number: 3, Name: "x"}, {Number: 5, Name: "é"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, name := range []string{"", strings.Repeat("é", driver.MaxDestinationName/2) + "x"} {
		if got, err := sqlstore.NewDestinations(registered, []string{name}); err == nil {
			t.Errorf("the name %q was accepted: %+v", name, got)
		}
	}
	var names []string
	for i := range driver.MaxDestinations {
		names = append(names, fmt.Sprint(i))
	}
	all, err := sqlstore.NewDestinations(nil, names)
	if err != nil || len(all) != driver.MaxDestinations || all[len(all)-1].Number != driver.MaxDestinations {
		t.Errorf("%+v, %v", all, err)
	}
	if got, err := sqlstore.NewDestinations(registered, names); !errors.Is(err, driver.ErrTooManyDestinations) || got != nil {
		t.Errorf("two too many: %+v, %v", got, err)
	}
}

func TestAllRegistered(t *testing.T) {
	registered := []store.Destination{{Number: 2, Name: "b"}, {Number: 4, Name: "d"}}
	for names, want := range map[string]bool{"": true, "b": true, "d b d": true, "b B": false, "x": false} {
		if got := sqlstore.AllRegistered(registered, strings.Fields(names)); got != want {
			t.Errorf("%q: %v, want %v", names, got, want)
		}
	}
}
