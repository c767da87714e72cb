package relay

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// SetFromEnv sets fields to the values of environment variables, so that an
// embedded relay can be tuned without a new build:
//
//	cfg := relay.Config{Name: "orders"}
//	err := cfg.SetFromEnv("ORDERS_RELAY_", os.LookupEnv)
//
// With that prefix, ORDERS_RELAY_WORKERS=8 sets Workers and
// ORDERS_RELAY_BACKOFF_SERIES=1s,30s,10m sets BackoffSeries. Every field with a
// number, a duration, a name, a switch (true, false) or a choice has a variable
// with its name; "off" means a negative number or duration. An empty variable
// leaves the field as it is. The error names every variable whose value cannot
// be read; the config is unchanged then. [New] checks the values.
func (c *Config) SetFromEnv(prefix string, lookup func(name string) (string, bool)) error {
	next := *c
	var errs []error
	for _, f := range next.environ() {
		name := prefix + variable(f.field)
		text, _ := lookup(name)
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if err := f.set(text); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", name, text, err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("relay: %w", errors.Join(errs...))
	}
	*c = next
	return nil
}

// environField is a field that a variable can set.
type environField struct {
	field string
	set   func(text string) error
}

// environ returns the fields that variables can set.
func (c *Config) environ() []environField {
	text := func(to *string) func(string) error { return func(s string) error { *to = s; return nil } }
	return []environField{
		{"Name", text(&c.Name)},
		{"SinkName", text(&c.SinkName)},
		{"TakeOver", parsed(&c.TakeOver, parseSwitch)},
		{"Version", text(&c.Version)},
		{"NewerTables", parsed(&c.NewerTables, parseSwitch)},
		{"Workers", parsed(&c.Workers, parseNumber)},
		{"BatchSize", parsed(&c.BatchSize, parseNumber)},
		{"HotQueue", parsed(&c.HotQueue, parseNumber)},
		{"ColdQueue", parsed(&c.ColdQueue, parseNumber)},
		{"MaxBytes", parsed(&c.MaxBytes, parseNumber)},
		{"MaxAttempts", parsed(&c.MaxAttempts, parseNumber)},
		{"BackoffBase", parsed(&c.BackoffBase, parseDuration)},
		{"BackoffMax", parsed(&c.BackoffMax, parseDuration)},
		{"BackoffSeries", parsed(&c.BackoffSeries, parseDurations)},
		{"UnknownGrace", parsed(&c.UnknownGrace, parseDuration)},
		{"OnDead", parsed(&c.OnDead, parseOnDead)},
		{"DeliverTimeout", parsed(&c.DeliverTimeout, parseDuration)},
		{"Lease", parsed(&c.Lease, parseDuration)},
		{"Heartbeat", parsed(&c.Heartbeat, parseDuration)},
		{"PollInterval", parsed(&c.PollInterval, parseDuration)},
		{"Linger", parsed(&c.Linger, parseDuration)},
		{"SweepInterval", parsed(&c.SweepInterval, parseDuration)},
		{"DrainTimeout", parsed(&c.DrainTimeout, parseDuration)},
		{"HistoryRetention", parsed(&c.HistoryRetention, parseDuration)},
		{"DeadRetention", parsed(&c.DeadRetention, parseDuration)},
		{"PurgeInterval", parsed(&c.PurgeInterval, parseDuration)},
		{"PurgeBatchSize", parsed(&c.PurgeBatchSize, parseNumber)},
	}
}

// parsed returns a function that stores a value.
func parsed[V any](to *V, parse func(text string) (V, error)) func(string) error {
	return func(text string) error {
		v, err := parse(text)
		if err == nil {
			*to = v
		}
		return err
	}
}

func parseSwitch(text string) (bool, error) {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return v, nil
}

func parseNumber(text string) (int, error) {
	if text == "off" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, errors.New("want a whole number, or off")
	}
	return n, nil
}

func parseDuration(text string) (time.Duration, error) {
	if text == "off" {
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("want a duration such as 500ms, 30s or 24h, or off")
	}
	return d, nil
}

func parseDurations(text string) ([]time.Duration, error) {
	var all []time.Duration
	for part := range strings.SplitSeq(text, ",") {
		d, err := time.ParseDuration(strings.TrimSpace(part))
		if err != nil {
			return nil, errors.New("want durations separated by commas, such as 1s,30s,10m")
		}
		all = append(all, d)
	}
	return all, nil
}

func parseOnDead(text string) (OnDead, error) {
	switch text {
	case "continue":
		return Continue, nil
	case "block":
		return Block, nil
	}
	return 0, errors.New("want continue or block")
}

// variable returns the end of the name of a field's variable: MAX_ATTEMPTS for
// MaxAttempts.
func variable(field string) string {
	var b strings.Builder
	for i, r := range field {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}
