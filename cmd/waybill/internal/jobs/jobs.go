// Package jobs converts the jobs of the file to jobs of package reconcile.
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

// ErrBadJob reports an invalid job in the file.
var ErrBadJob = errors.New("invalid job")

// kind builds a job, or reports a missing parameter.
type kind func(st *connect.Store, s *settings.Settings, def settings.Job) (reconcile.Job, error)

// Defaults of built-in jobs.
const (
	defaultAge         = 10 * time.Minute
	defaultMinAttempts = 15 // of inbox.Options.MaxAttempts, by default 20
)

// kinds returns the kinds of jobs by their name in the file.
func kinds() map[string]kind {
	return map[string]kind{
		"sql": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			if def.SQL == "" {
				return reconcile.Job{}, errors.New("sql is missing")
			}
			shared := waybill.Event{Type: def.Type, AggregateType: def.AggregateType, Topic: def.Topic}
			return reconcile.Job{Find: reconcile.QueryFind(st.SQL, reconcile.Query{SQL: def.SQL, Event: shared})}, nil
		},
		"stuck-leases": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.StuckLeases(st, orDefault(def.Age, defaultAge)), nil
		},
		"stuck-keys": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.StuckKeys(st, orDefault(def.Age, defaultAge)), nil
		},
		"near-limit": func(st *connect.Store, _ *settings.Settings, def settings.Job) (reconcile.Job, error) {
			return reconcile.NearLimit(st, def.Group, orDefault(def.MinAttempts, defaultMinAttempts)), nil
		},
		"unrecorded": func(st *connect.Store, s *settings.Settings, def settings.Job) (reconcile.Job, error) {
			switch {
			case def.Group == "":
				return reconcile.Job{}, errors.New("group is missing")
			case s.Relay.HistoryRetention < 0:
				return reconcile.Job{}, errors.New("the job reads the history, and relay.history-retention is off")
			}
			return reconcile.UnrecordedReport(st, def.Group, s.Relay.HistoryRetention, nil), nil
		},
	}
}

// Kinds returns the names of the kinds.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds())) }

func orDefault[V time.Duration | int](value, def V) V {
	if value == 0 {
		return def
	}
	return value
}

// Build builds jobs over a store. It reports all problems at once.
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

// schedule sets the schedule of a job; without one the job has its default.
func schedule(j *reconcile.Job, def settings.Job) error {
	switch {
	case def.Every > 0 && def.Cron != "":
		return errors.New("every and cron exclude each other")
	case def.Every > 0:
		j.Schedule = reconcile.Every(def.Every)
	case def.Cron != "":
		s, err := reconcile.Cron(def.Cron)
		if err != nil {
			return err
		}
		j.Schedule = s
	}
	return nil
}

// KindOf returns the kind of a job; the default with a query is sql.
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
		advice := "kinds: " + strings.Join(Kinds(), ", ")
		if near := hint.Nearest(name, Kinds()); near != "" {
			advice = "did you mean " + near + "?"
		}
		return reconcile.Job{}, wrong(advice, fmt.Errorf("unknown kind %q", name))
	}
	j, err := build(st, s, def)
	if err != nil {
		return reconcile.Job{}, wrong("see Jobs in docs/cli.md", err)
	}
	j.Name = def.Name
	if err := schedule(&j, def); err != nil {
		return reconcile.Job{}, wrong("see Jobs in docs/cli.md", err)
	}
	j.LookBack = orDefault(def.LookBack, j.LookBack)
	j.MinAge = orDefault(def.MinAge, j.MinAge)
	j.ResendAfter = orDefault(def.ResendAfter, j.ResendAfter)
	j.TraceRetention = orDefault(def.TraceRetention, j.TraceRetention)
	j.Limit = orDefault(def.Limit, j.Limit)
	return j, nil
}
