package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/retention"
	"github.com/waybillhq/waybill/store/driver"
)

// ErrNoThroughput means that the store does not keep the counts of deliveries.
var ErrNoThroughput = errors.New("admin: the store keeps no counts of deliveries: it lacks the role Rollups")

type (
	// Results are numbers of results of deliveries. An event counts at each of
	// its destinations.
	Results = driver.RollupCounts
	// ThroughputRow holds the results of a step of time. Its type is empty for
	// the sum of all types, and with ThroughputFilter.ByType for the types that
	// relays counted together.
	ThroughputRow = driver.Rollup
)

// ThroughputFilter selects results of deliveries; empty fields match
// everything.
type ThroughputFilter struct {
	// Since and Until are the times at which the first step begins and the last
	// one ends, rounded to whole steps. Until defaults to now, by the
	// database's clock, and Since to an hour before Until.
	Since, Until time.Time
	// Step is the length of a step, in whole minutes, and in whole hours if
	// Since is more than a day ago: relays merge older counts into hours. It
	// defaults to a length with which there are at most 180 steps, or an hour.
	Step time.Duration
	// Destination and Type select the results of one destination, and of one
	// type of events.
	Destination, Type string
	// ByType returns a row for each type.
	ByType bool
}

// Throughput holds the results of deliveries over time.
type Throughput struct {
	// Since and Until bound the steps. Now is the database's time: a step that
	// has not ended is incomplete.
	Since, Until, Now time.Time
	Step              time.Duration
	// Rows are in the order of their time, destination and type. A step without
	// results has none.
	Rows []ThroughputRow
}

// maxSteps is the maximum number of steps of a request.
const maxSteps = 2000

// Throughput returns how many deliveries succeeded and failed over time, and
// how many events became dead letters, as the relays have counted them. Relays
// send their counts every few seconds; counts are kept for 14 days. In the
// backlog of a destination it returns the results of that destination. It
// returns [ErrNoThroughput] if the store does not keep counts.
func (d *Outbox) Throughput(ctx context.Context, f ThroughputFilter) (Throughput, error) {
	if d.rollups == nil {
		return Throughput{}, ErrNoThroughput
	}
	s, err := d.members(ctx)
	if err != nil {
		return Throughput{}, fmt.Errorf("admin: throughput: %w", err)
	}
	return d.throughput(ctx, f, s.Now)
}

// throughput is Throughput at a time of the database.
func (d *Outbox) throughput(ctx context.Context, f ThroughputFilter, now time.Time) (Throughput, error) {
	t, err := f.bounds(now)
	if err != nil {
		return t, err
	}
	if d.destination != "" {
		f.Destination = d.destination
	}
	t.Rows, err = d.rollups.ListRollups(ctx, driver.RollupFilter{
		Since: t.Since, Until: t.Until, Step: t.Step, Destination: f.Destination, Type: f.Type, ByType: f.ByType,
	})
	if err != nil {
		return t, fmt.Errorf("admin: throughput: %w", err)
	}
	return t, nil
}

// bounds returns the steps that a filter selects.
func (f ThroughputFilter) bounds(now time.Time) (Throughput, error) {
	t := Throughput{Since: f.Since, Until: f.Until, Step: f.Step, Now: now}
	if t.Until.IsZero() {
		t.Until = now
	}
	if t.Since.IsZero() {
		t.Since = t.Until.Add(-time.Hour)
	}
	unit := time.Minute
	if t.Since.Before(now.Add(-retention.RollupMinutes)) {
		unit = time.Hour
	}
	if t.Step == 0 {
		t.Step = stepOf(t.Until.Sub(t.Since))
	}
	t.Step = (max(t.Step, unit) + unit - 1).Truncate(unit)
	if !t.Since.Before(t.Until) {
		return t, fmt.Errorf("%w: the begin %v is not before the end %v", ErrInvalid, t.Since, t.Until)
	}
	t.Since, t.Until = beginOf(t.Since, t.Step), beginOf(t.Until.Add(t.Step-1), t.Step)
	if t.Until.Sub(t.Since)/t.Step > maxSteps {
		return t, fmt.Errorf("%w: more than %d steps of %v", ErrInvalid, maxSteps, t.Step)
	}
	return t, nil
}

// beginOf returns the begin of the step of a time, as stores align steps.
func beginOf(t time.Time, step time.Duration) time.Time {
	seconds := int64(step / time.Second)
	return time.Unix(t.Unix()/seconds*seconds, 0).UTC()
}

// stepOf returns the shortest usual step that divides a span into at most 180.
func stepOf(span time.Duration) time.Duration {
	for _, step := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute} {
		if span <= 180*step {
			return step
		}
	}
	return time.Hour
}

// RecentResults holds the results of deliveries to a destination lately.
type RecentResults struct {
	// Destination is the name of the destination; empty for a relay with one
	// sink, and for events that ended their process before the relay knew at
	// which destination.
	Destination string
	// Minute are the results of the last minute whose counts have arrived, and
	// Hour those of the sixty minutes that end with it.
	Minute, Hour Results
}

// arrival is the time that relays have to send the counts of a minute.
const arrival = 10 * time.Second

// RecentThroughput returns the results of the last minute and the last hour, by
// destination; none if there are none. It returns [ErrNoThroughput] if the
// store does not keep them.
func (d *Outbox) RecentThroughput(ctx context.Context) ([]RecentResults, error) {
	if d.rollups == nil {
		return nil, ErrNoThroughput
	}
	s, err := d.members(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: throughput: %w", err)
	}
	end := beginOf(s.Now.Add(-arrival), time.Minute)
	t, err := d.throughput(ctx, ThroughputFilter{Since: end.Add(-time.Hour), Until: end, Step: time.Minute}, s.Now)
	if err != nil {
		return nil, err
	}
	return t.recent(end.Add(-time.Minute)), nil
}

// recent sums up the rows, and those of the last minute.
func (t *Throughput) recent(last time.Time) []RecentResults {
	sums := make(map[string]*RecentResults)
	for _, r := range t.Rows {
		sum := sums[r.Destination]
		if sum == nil {
			sum = &RecentResults{Destination: r.Destination}
			sums[r.Destination] = sum
		}
		sum.Hour.Add(r.RollupCounts)
		if r.At.Equal(last) {
			sum.Minute.Add(r.RollupCounts)
		}
	}
	var out []RecentResults
	for _, sum := range sums {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b RecentResults) int { return strings.Compare(a.Destination, b.Destination) })
	return out
}
