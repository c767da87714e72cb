package settings

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Job is an entry of jobs: what should exist and left no trace is found and sent again, or reported.
type Job struct {
	Name    string
	Enabled bool
	// Relay is whose store it looks at; "" if there is only one.
	Relay string
	// Kind is "sql", or one of the jobs that are built in; package jobs knows them.
	Kind string
	// Every is how often it runs; LookBack, how far it looks; MinAge, how old what it looks at is at least. Zero: the job's default.
	Every, LookBack, MinAge, ResendAfter, TracesKept time.Duration
	// SQL returns the events that are missing; Type, AggregateType and Topic are those of all of them.
	SQL, Type, AggregateType, Topic string
	// Group, Age and Attempts are what built-in jobs ask for.
	Group    string
	Age      time.Duration
	Attempts int
	// Limit is how many events it sends in one run.
	Limit int

	where string
}

// Where is the place of the job in the file.
func (j *Job) Where() string { return j.where }

// fields are the keys of a job.
func (j *Job) fields() map[string]slot {
	return map[string]slot{
		"enabled": switchSlot{&j.Enabled}, "relay": textSlot{&j.Relay}, "kind": textSlot{&j.Kind},
		"every": durationSlot{p: &j.Every}, "look-back": durationSlot{p: &j.LookBack}, "min-age": durationSlot{p: &j.MinAge, offers: true},
		"resend-after": durationSlot{p: &j.ResendAfter, offers: true}, "traces-kept": durationSlot{p: &j.TracesKept},
		"sql": textSlot{&j.SQL}, "type": textSlot{&j.Type}, "aggregate-type": textSlot{&j.AggregateType}, "topic": textSlot{&j.Topic},
		"group": textSlot{&j.Group}, "age": durationSlot{p: &j.Age}, "attempts": numberSlot{p: &j.Attempts, least: 1},
		"limit": numberSlot{p: &j.Limit, least: 1},
	}
}

// JobKeys returns the keys of a job, for the documentation's test.
func JobKeys() []string { return slices.Sorted(maps.Keys((&Job{}).fields())) }

func (d *document) job(name string, value *yaml.Node) {
	if !nameForm.MatchString(name) {
		d.complain(value, "use letters, digits, - and _", "the job's name %q cannot be used", name)
		return
	}
	for _, other := range d.jobs {
		if other.Name == name {
			d.complain(value, "give each job its own name", "there are two jobs %s", name)
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
			d.complain(at, didYouMean(key, names), "a job has no %s", key)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			d.complain(at, "write "+key+": VALUE", "jobs.%s.%s is one value", name, key)
		default:
			if err := field.set(value.Value); err != nil {
				d.complain(at, "see docs/cli.md", "jobs.%s.%s: %v", name, key, err)
			}
		}
	})
	d.jobs = append(d.jobs, j)
}
