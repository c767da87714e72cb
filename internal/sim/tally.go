package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// tally counts what worlds did. Its zero value is ready to use.
type tally struct {
	worlds, events, deliveries, duplicates, settlements, effects, answers atomic.Int64
	simulated                                                             atomic.Int64 // nanoseconds
	faults                                                                [faults]atomic.Int64
}

func (t *tally) fault(f fault) { t.faults[f].Add(1) }

// Totals is a tally as it is stored in a file.
type totals struct {
	Worlds, Events, Deliveries, Duplicates, Settlements, Effects, Answers int64
	SimulatedHours                                                        float64
	Faults                                                                map[string]int64
}

func (t *tally) totals() totals {
	out := totals{
		Worlds: t.worlds.Load(), Events: t.events.Load(), Deliveries: t.deliveries.Load(), Duplicates: t.duplicates.Load(),
		Settlements: t.settlements.Load(), Effects: t.effects.Load(), Answers: t.answers.Load(),
		SimulatedHours: time.Duration(t.simulated.Load()).Hours(), Faults: make(map[string]int64),
	}
	for _, f := range allFaults() {
		if n := t.faults[f].Load(); n > 0 {
			out.Faults[f.String()] = n
		}
	}
	return out
}

func (t totals) String() string {
	var sum int64
	for _, n := range t.Faults {
		sum += n
	}
	return fmt.Sprintf("%d worlds, %d events, %d deliveries, %d duplicates, %d settlements, %d effects, %d answers, %.1f simulated hours, %d faults of %d kinds",
		t.Worlds, t.Events, t.Deliveries, t.Duplicates, t.Settlements, t.Effects, t.Answers, t.SimulatedHours, sum, len(t.Faults))
}

// addTo adds the totals to those in a file.
func (t totals) addTo(name string) error {
	var sum totals
	data, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &sum); err != nil {
			return fmt.Errorf("sim: tally %s: %w", name, err)
		}
	}
	sum.Worlds += t.Worlds
	sum.Events += t.Events
	sum.Deliveries += t.Deliveries
	sum.Duplicates += t.Duplicates
	sum.Settlements += t.Settlements
	sum.Effects += t.Effects
	sum.Answers += t.Answers
	sum.SimulatedHours += t.SimulatedHours
	if sum.Faults == nil {
		sum.Faults = make(map[string]int64)
	}
	for kind, n := range t.Faults {
		sum.Faults[kind] += n
	}
	if data, err = json.MarshalIndent(sum, "", "\t"); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // as a build writes it
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644) //nolint:gosec // a report
}
