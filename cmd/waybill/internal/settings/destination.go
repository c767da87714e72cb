package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

// Destination is an entry of destinations: one of several receivers of a
// relay's events. Its settings are keys of the file only, without flags and
// variables; the secrets of its sink may be in files. See
// [github.com/waybillhq/waybill/relay.Destination].
type Destination struct {
	Name string
	Sink Sink
	// Types, AggregateTypes and Tenants select events; empty: all.
	Types, AggregateTypes, Tenants []string
	// Rate is the maximum number of events per second; 0: no limit.
	Rate                         float64
	Concurrency, MaxAttempts     int
	BackoffBase, BackoffMax      time.Duration
	BackoffSeries                []time.Duration
	UnknownGrace, DeliverTimeout time.Duration
	OnDead                       string
	// DivertAfter and PauseAfter are negative if they are off.
	DivertAfter time.Duration
	PauseAfter  int
}

// newDestination returns a destination with its defaults: the settings of the
// relay, except the URL of the sink.
func newDestination(name string, s *Settings) *Destination {
	r := s.Relay
	d := &Destination{
		Name: name, Sink: s.Sink, Concurrency: r.Workers, MaxAttempts: r.MaxAttempts, BackoffBase: r.BackoffBase, BackoffMax: r.BackoffMax,
		BackoffSeries: r.BackoffSeries, UnknownGrace: r.UnknownGrace, DeliverTimeout: r.DeliverTimeout, OnDead: r.OnDead,
		DivertAfter: 250 * time.Millisecond, PauseAfter: 100,
	}
	d.Sink.URL = Secret{}
	return d
}

// DestinationKeys returns the settings of a destination, in display order. The
// default of some is the value of a setting of the relay: then Default is the
// name of that setting.
func DestinationKeys() []Key { return (&Destination{}).keys() }

// keys returns the table of the destination's settings.
func (d *Destination) keys() []Key {
	sink := sinkKeysOf(func(*Settings) *Sink { return &d.Sink })
	for i := range sink {
		sink[i].Default = sink[i].Name
		if sink[i].Name == "sink.url" {
			sink[i].Default, sink[i].Help = "", "URL of the destination's sink"
		}
	}
	all := slices.Concat(sink, d.filterKeys(), d.paceKeys())
	for i := range all {
		all[i].FileOnly = true
	}
	return all
}

// filterKeys returns the settings that select events.
func (d *Destination) filterKeys() []Key {
	return []Key{
		{
			Name: "types", Unit: "names", Help: "Event types that the destination receives; empty: all",
			slot: func(*Settings) slot { return listSlot{p: &d.Types} },
		},
		{
			Name: "aggregate-types", Unit: "names", Help: "Aggregate types whose events the destination receives; empty: all",
			slot: func(*Settings) slot { return listSlot{p: &d.AggregateTypes} },
		},
		{
			Name: "tenants", Unit: "names", Help: "Tenants whose events the destination receives, \"\" for events without a tenant; empty: all",
			slot: func(*Settings) slot { return listSlot{p: &d.Tenants, blank: true} },
		},
	}
}

// paceKeys returns the settings of the destination's calls, retries and pauses.
func (d *Destination) paceKeys() []Key {
	return []Key{
		{
			Name: "rate", Default: off, Unit: "rate", Help: "Maximum number of events per second (50/s), minute (3000/m) or hour that one node sends; off: no limit",
			slot: func(*Settings) slot { return rateSlot{&d.Rate} },
		},
		{
			Name: "concurrency", Default: "relay.workers", Unit: "deliveries", Help: "Number of concurrent calls of the sink",
			slot: number(1, func(*Settings) *int { return &d.Concurrency }),
		},
		{
			Name: "max-attempts", Default: "relay.max-attempts", Unit: "attempts", Help: "Maximum number of delivery attempts before an event is dead; off: no limit",
			slot: numberOrOff(func(*Settings) *int { return &d.MaxAttempts }),
		},
		{
			Name: "backoff-base", Default: "relay.backoff-base", Unit: "duration", Help: "Delay after the first failed attempt; it doubles after each further failure",
			slot: span(func(*Settings) *time.Duration { return &d.BackoffBase }),
		},
		{
			Name: "backoff-max", Default: "relay.backoff-max", Unit: "duration", Help: "Maximum delay between two attempts",
			slot: span(func(*Settings) *time.Duration { return &d.BackoffMax }),
		},
		{
			Name: "backoff-series", Default: "relay.backoff-series", Unit: "durations",
			Help: "Delays between attempts, separated by commas, instead of doubling delays; the last one repeats. Default beside backoff-base or backoff-max: none",
			slot: func(*Settings) slot { return seriesSlot{&d.BackoffSeries} },
		},
		{
			Name: "unknown-grace", Default: "relay.unknown-grace", Unit: "duration", Help: "Time that an event waits for a receiver that does not exist before the event is dead",
			slot: spanOrZero(func(*Settings) *time.Duration { return &d.UnknownGrace }),
		},
		{
			Name: "on-dead", Default: "relay.on-dead", Unit: "choice", Help: "Handling of an aggregate after one of its events is dead: continue, or block until an operator decides",
			slot: choice(func(*Settings) *string { return &d.OnDead }, "continue", "block"),
		},
		{
			Name: "deliver-timeout", Default: "relay.deliver-timeout", Unit: "duration", Help: "Time limit for one call of the sink; 0s: the lease",
			slot: spanOrZero(func(*Settings) *time.Duration { return &d.DeliverTimeout }),
		},
		{
			Name: "divert-after", Default: "250ms", Unit: "duration", Help: "Time that an event may take longer than at all other destinations before it moves to the backlog; off: the others wait",
			slot: spanOrOff(func(*Settings) *time.Duration { return &d.DivertAfter }),
		},
		{
			Name: "pause-after", Default: "100", Unit: "events", Help: "Number of dead letters in a row with one cause after which the relay pauses the destination; off: never",
			slot: numberOrOff(func(*Settings) *int { return &d.PauseAfter }),
		},
	}
}

// destinations returns the sections of the destinations: those of the relay's
// entry, or the common ones, unless the entry has a sink.
func (l *loader) destinations() []section {
	_, url := l.own.entries["sink.url"]
	_, file := l.own.entries["sink.url-file"]
	if l.own.destinations != nil || url || file {
		return l.own.destinations
	}
	return l.file.common.destinations
}

// conflict returns an error if there are destinations, and a source sets the
// only sink, too: neither overrides the other. The entry of a relay overrides
// the common values.
func (l *loader) conflict() error {
	all := l.destinations()
	if len(all) == 0 {
		return nil
	}
	k := Table()[slices.IndexFunc(Table(), func(k Key) bool { return k.Name == "sink.url" })]
	rungs := l.rungs(k)
	if l.own.destinations != nil {
		rungs = rungs[:len(rungs)-1]
	}
	for _, rung := range rungs {
		for _, name := range []string{k.Name, k.FileName()} {
			if _, source, ok := rung(name); ok {
				return hint.New("omit one of them", "%s (%s) and %s (%s) are both set", name, source,
					strings.Join(all[0].above[:len(all[0].above)-1], "."), l.file.at(all[0].line))
			}
		}
	}
	return nil
}

// addDestinations adds the destinations and their values.
func (l *loader) addDestinations(s *Settings) error {
	var errs []error
	for _, own := range l.destinations() {
		d := newDestination(own.name, s)
		if err := l.fill(d, own, s); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, d.check(own.path, s))
		s.Destinations = append(s.Destinations, *d)
	}
	return errors.Join(errs...)
}

// fill sets the values of a destination, and lists them.
func (l *loader) fill(d *Destination, own section, s *Settings) error {
	var errs []error
	look := l.file.rung(own)
	_, base := own.entries["backoff-base"]
	if _, longest := own.entries["backoff-max"]; base || longest {
		d.BackoffSeries = []time.Duration{}
	}
	for _, k := range d.keys() {
		sl := k.slot(s)
		k.Default = sl.show()
		text, source, ok, err := look.value(k)
		switch list, lists := sl.(listSlot); {
		case err != nil:
			err = fmt.Errorf("%s: %w", strings.Join(own.above, "."), err)
		case !ok:
			source = "default"
		case lists && own.entries[k.Name].list != nil:
			err = list.take(own.entries[k.Name].list)
		default:
			err = sl.set(text)
		}
		if err != nil && ok {
			err = hint.New(k.Help+" ("+k.Unit+")", "%s (%s): %w", own.path(k.Name), source, err)
		}
		k.Name = own.path(k.Name)
		errs = append(errs, err)
		s.values = append(s.values, Value{Key: k, Text: sl.show(), Source: source})
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if d.Sink.URL.IsZero() {
		return hint.New("add sink: URL", "%s (%s) is missing", own.path("sink"), l.file.at(own.line))
	}
	return nil
}

// check rejects combinations of values that contradict each other or those of
// the relay.
func (d *Destination) check(path func(key string) string, s *Settings) error {
	var errs []error
	if d.BackoffBase > d.BackoffMax {
		errs = append(errs, hint.New("lower backoff-base or raise backoff-max", "%s (%s) exceeds %s (%s)",
			path("backoff-base"), FormatDuration(d.BackoffBase), path("backoff-max"), FormatDuration(d.BackoffMax)))
	}
	if d.OnDead == "continue" && s.Relay.OnDead == "block" {
		errs = append(errs, hint.New("omit relay.on-dead, and set on-dead at the destinations whose aggregates are to be blocked",
			"%s is continue, and relay.on-dead is block", path("on-dead")))
	}
	return errors.Join(errs...)
}
