package settings

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Job is an entry of jobs: a job that finds missing events and sends them
// again, or reports them.
type Job struct {
	Name    string
	Enabled bool
	// Relay is the name of the relay whose store the job reads; "" if there is
	// only one.
	Relay string
	// Kind is "sql", or one of the built-in kinds of package jobs.
	Kind string
	// Every is the interval between runs; Cron is a cron expression instead.
	// LookBack is the length of the window; MinAge is the minimum age of the
	// rows in it. Zero: the job's default.
	Every, LookBack, MinAge, ResendAfter, TraceRetention time.Duration
	Cron                                                 string
	// SQL returns the missing events; Type, AggregateType and Topic apply to
	// all of them.
	SQL, Type, AggregateType, Topic string
	// Group, Age and MinAttempts are parameters of built-in jobs.
	Group       string
	Age         time.Duration
	MinAttempts int
	// Limit is the maximum number of events that one run sends.
	Limit int

	where string
}

// Where returns the position of the job in the file.
func (j *Job) Where() string { return j.where }

// fields returns the keys of a job.
func (j *Job) fields() map[string]slot {
	return map[string]slot{
		"enabled": switchSlot{&j.Enabled}, "relay": textSlot{&j.Relay}, "kind": textSlot{&j.Kind},
		"every": durationSlot{p: &j.Every}, "cron": textSlot{&j.Cron}, "look-back": durationSlot{p: &j.LookBack}, "min-age": durationSlot{p: &j.MinAge, allowOff: true},
		"resend-after": durationSlot{p: &j.ResendAfter, allowOff: true}, "trace-retention": durationSlot{p: &j.TraceRetention},
		"sql": textSlot{&j.SQL}, "type": textSlot{&j.Type}, "aggregate-type": textSlot{&j.AggregateType}, "topic": textSlot{&j.Topic},
		"group": textSlot{&j.Group}, "age": durationSlot{p: &j.Age}, "min-attempts": numberSlot{p: &j.MinAttempts, min: 1},
		"limit": numberSlot{p: &j.Limit, min: 1},
	}
}

// JobKeys returns the keys of a job, for the test of the documentation.
func JobKeys() []string { return slices.Sorted(maps.Keys((&Job{}).fields())) }

func (d *document) job(name string, value *yaml.Node) {
	if !nameForm.MatchString(name) {
		d.addError(value, "use letters, digits, - and _", "invalid job name %q", name)
		return
	}
	for _, other := range d.jobs {
		if other.Name == name {
			d.addError(value, "give each job its own name", "duplicate job %s", name)
			return
		}
	}
	j := Job{Name: name, Enabled: true, where: fmt.Sprintf("%s:%d", d.path, value.Line)}
	fields := j.fields()
	names := make(map[string]bool)
	for field := range fields {
		names[field] = true
	}
	d.pairs(value, "jobs."+name, func(key string, at, value *yaml.Node) {
		field, known := fields[key]
		switch {
		case !known:
			d.addError(at, didYouMean(key, names), "unknown key %s of a job", key)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			d.addError(at, "write "+key+": VALUE", "jobs.%s.%s must be one value", name, key)
		default:
			if err := field.set(value.Value); err != nil {
				d.addError(at, "see docs/cli.md", "jobs.%s.%s: %v", name, key, err)
			}
		}
	})
	d.jobs = append(d.jobs, j)
}
