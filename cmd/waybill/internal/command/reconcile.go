package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/jobs"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store"
)

func (a *app) reconcile() *cobra.Command {
	return parent("reconcile", "List and run the jobs that find missing events and send them again", a.reconcileList(), a.reconcileRun())
}

// atJobs runs a command with the jobs of a relay.
func (a *app) atJobs(cmd *cobra.Command, fn func(ctx context.Context, d *session, defs []settings.Job) error) error {
	loaded, err := a.load(cmd)
	if err != nil {
		return err
	}
	one, err := loaded.Pick(a.relayName())
	if err != nil {
		return &coded{err, Usage}
	}
	return a.withStore(cmd, func(ctx context.Context, d *session) error { return fn(ctx, d, loaded.JobsOf(one)) })
}

func (a *app) reconcileList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the jobs of the file and the jobs that ran on this store", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.atJobs(cmd, func(ctx context.Context, d *session, defs []settings.Job) error {
				records, err := d.store.JobRecords.ListJobs(ctx)
				if err != nil {
					return d.store.Clean(err)
				}
				return a.printJobs(jobViews(defs, records))
			})
		},
	}
}

// jobViews combines the jobs of the file with their records in the store.
func jobViews(defs []settings.Job, records []store.JobRecord) []view.Job {
	ran := make(map[string]store.JobRecord)
	for _, r := range records {
		ran[r.Name] = r
	}
	out := []view.Job{}
	for _, def := range defs {
		out = append(out, view.JobOf(def.Name, jobs.KindOf(def), def.Enabled, ran[def.Name]))
		delete(ran, def.Name)
	}
	for _, r := range records {
		if _, left := ran[r.Name]; left {
			out = append(out, view.JobOf(r.Name, "", false, r)) // a job of another service
		}
	}
	return out
}

func (a *app) printJobs(all []view.Job) error {
	if a.json {
		return a.printJSON(map[string]any{"jobs": all})
	}
	if len(all) == 0 {
		fmt.Fprintln(a.Err, "no jobs; add jobs: to the file of settings")
		return nil
	}
	t := newTable("JOB", "KIND", "ENABLED", "LAST RUN", "NEXT", "FOUND", "SENT", "SKIPPED", "FAILED", "ERROR")
	for _, j := range all {
		t.row(j.Name, or(j.Kind), yesNo(j.Enabled), at(j.StartedAt), at(j.Next), j.Found, j.Sent, j.Skipped, j.Failed, or(j.LastError))
	}
	return t.writeTo(a.Out)
}

func (a *app) reconcileRun() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use: "run JOB", Short: "Run a job of the file now, independent of its schedule", Args: needs(1, 1, "the name of a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.atJobs(cmd, func(ctx context.Context, d *session, defs []settings.Job) error {
				return a.runJob(ctx, d, defs, args[0], dry)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "Report of the missing events without sending them")
	return cmd
}

func (a *app) runJob(ctx context.Context, d *session, defs []settings.Job, name string, dry bool) error {
	var names []string
	for _, def := range defs {
		names = append(names, def.Name)
		if def.Name != name {
			continue
		}
		list, err := jobs.Build(d.store, d.settings, []settings.Job{def})
		if err != nil {
			return err
		}
		r, err := d.store.Reconciler(list, reconcile.Config{})
		if err != nil {
			return &coded{hint.New("change the job at "+def.Where(), "%w", err), Usage}
		}
		return a.report(ctx, d.store, r, name, dry)
	}
	advice := "add it to jobs: in the file of settings"
	if near := hint.Nearest(name, names); near != "" {
		advice = "did you mean " + near + "?"
	}
	return &coded{hint.New(advice, "job %s does not exist", name), NotFound}
}

// report runs a job and prints its result.
func (a *app) report(ctx context.Context, st *connect.Store, r connect.Reconciler, name string, dry bool) error {
	run := r.RunOnce
	if dry {
		run = r.DryRun
	}
	rep, err := run(ctx, name)
	if errors.Is(err, waybill.ErrInProgress) {
		return hint.New("wait for that run; waybill reconcile list shows when it started", "job %s is already running", name)
	}
	if rep.Job == "" {
		return st.Clean(err)
	}
	v := view.ReportOf(rep)
	if a.json {
		return errors.Join(a.printJSON(v), st.Clean(err))
	}
	fmt.Fprintf(a.Out, "%s: found %d, sent %d, skipped %d, failed %d\n", plain(v.Job), v.Found, v.Sent, v.Skipped, v.Failed)
	for _, note := range v.Notes {
		fmt.Fprintln(a.Out, plain(note))
	}
	for _, ev := range v.WouldSend {
		fmt.Fprintf(a.Out, "would send: %s %s\n", plain(ev.Type), plain(aggregate(ev.AggregateType, ev.AggregateID)))
	}
	if v.More {
		fmt.Fprintln(a.Err, "the limit was reached; the next run continues")
	}
	return st.Clean(err)
}
