// Package jobs makes the jobs of the file into jobs of package reconcile.
package jobs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/reconcile"
)

// ErrBadJob says that a job of the file cannot be run.
var ErrBadJob = errors.New("the job is wrong")

// kind makes a job; it says what is missing.
type kind func(st *connect.Store, s *settings.Settings, def settings.Job) (reconcile.Job, error)

// What built-in jobs go by where the file does not say.
const (
	defaultAge      = 10 * time.Minute
	defaultAttempts = 15 // of 21 that a group makes by default
)

// kinds are the kinds of jobs, by their name in the file.
func kinds() map[string]kind {
	return map[string]kind{
		"sql": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			if def.SQL == "" {
				return reconcile.Job{}, errors.New("it has no sql")
			}
			shared := waybill.Event{Type: def.Type, AggregateType: def.AggregateType, Topic: def.Topic}
			return reconcile.Job{Find: reconcile.QueryFind(st.SQL, reconcile.Query{SQL: def.SQL, Event: shared})}, nil
		},
		"stuck-leases": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.StuckLeases(st.Tables, orUsual(def.Age, defaultAge)), nil
		},
		"stuck-keys": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.StuckKeys(st.Tables, orUsual(def.Age, defaultAge)), nil
		},
		"near-limit": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.NearLimit(st.Tables, def.Group, orUsual(def.Attempts, defaultAttempts)), nil
		},
		"unrecorded": func(st *connect.Store, s *settings.Settings, def settings.Job) (reconcile.Job, error) {
			switch {
			case def.Group == "":
				return reconcile.Job{}, errors.New("it has no group")
			case s.Relay.KeepHistory < 0:
				return reconcile.Job{}, errors.New("it looks at the history, and relay.keep-history is off")
			}
			return reconcile.UnrecordedReport(st.Tables, def.Group, s.Relay.KeepHistory, nil), nil
		},
	}
}

// Kinds returns the names of the kinds.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds())) }

func orUsual[V time.Duration | int](value, usual V) V {
	if value == 0 {
		return usual
	}
	return value
}

// Build makes jobs over a store. All that is wrong is reported at once.
func Build(st *connect.Store, s *settings.Settings, defs []settings.Job) ([]reconcile.Job, error) {
	var out []reconcile.Job
	var errs settings.Problems
	for _, def := range defs {
		j, err := build(st, s, def)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, j)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return out, nil
}

// KindOf returns the kind of a job: one with a query needs not say it.
func KindOf(def settings.Job) string {
	if def.Kind == "" && def.SQL != "" {
		return "sql"
	}
	return def.Kind
}

func build(st *connect.Store, s *settings.Settings, def settings.Job) (reconcile.Job, error) {
	wrong := func(advice string, err error) error {
		return hint.New(advice, "%s: job %s: %w: %w", def.Where(), def.Name, ErrBadJob, err)
	}
	name := KindOf(def)
	build, known := kinds()[name]
	if !known {
		advice := "there are " + strings.Join(Kinds(), ", ")
		if near := hint.Nearest(name, Kinds()); near != "" {
			advice = "did you mean " + near + "?"
		}
		return reconcile.Job{}, wrong(advice, fmt.Errorf("no kind of job is called %q", name))
	}
	j, err := build(st, s, def)
	if err != nil {
		return reconcile.Job{}, wrong("see the jobs in docs/cli.md", err)
	}
	j.Name = def.Name
	if def.Every > 0 {
		j.Schedule = reconcile.Every(def.Every)
	}
	j.LookBack = orUsual(def.LookBack, j.LookBack)
	j.MinAge = orUsual(def.MinAge, j.MinAge)
	j.ResendAfter = orUsual(def.ResendAfter, j.ResendAfter)
	j.TracesKept = orUsual(def.TracesKept, j.TracesKept)
	j.Limit = orUsual(def.Limit, j.Limit)
	return j, nil
}
