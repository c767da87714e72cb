package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

func (a *app) inbox() *cobra.Command {
	return parent("inbox", "Inspect the inbox records of consumer groups, and redrive them", a.inboxStats(), a.inboxList(), a.inboxShow(), a.inboxRedrive())
}

func (a *app) inboxStats() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "stats", Short: "Count failed and dead records by group", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				stats, err := d.groups.Stats(ctx, all)
				if err != nil {
					return d.store.Clean(err)
				}
				groups := []view.Group{}
				for _, g := range stats {
					groups = append(groups, view.GroupOf(g))
				}
				if a.json {
					return a.printJSON(map[string]any{"groups": groups})
				}
				if len(groups) == 0 {
					fmt.Fprintln(a.Err, "every group has processed all its records")
					return nil
				}
				return groupTable(groups).writeTo(a.Out)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Inclusion of groups without failures; reads every record")
	return cmd
}

var inboxStates = []store.InboxState{store.InboxProcessing, store.InboxSucceeded, store.InboxFailed, store.InboxDead}

func parseInboxStates(texts []string) ([]store.InboxState, error) {
	var out []store.InboxState
next:
	for _, text := range texts {
		var names []string
		for _, s := range inboxStates {
			if s.String() == text {
				out = append(out, s)
				continue next
			}
			names = append(names, s.String())
		}
		return nil, usage("states: "+strings.Join(names, ", "), "unknown state %q", text)
	}
	return out, nil
}

func (a *app) inboxList() *cobra.Command {
	var f store.RecordFilter
	var names []string
	var limit int
	var afterGroup, afterKey string
	cmd := &cobra.Command{
		Use: "list", Short: "List records that were not processed successfully", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.States, err = parseInboxStates(names); err != nil {
				return err
			}
			if (afterGroup == "") != (afterKey == "") {
				return usage("set both or neither", "--after-group and --after-key must be used together")
			}
			var after waybill.ID
			if afterKey != "" {
				ids, err := parseIDs([]string{afterKey})
				if err != nil {
					return err
				}
				after = ids[0]
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				return a.listRecords(ctx, d, f, afterGroup, after, max(limit, 1))
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Group, "group", "", "Only records of this group")
	flags.StringSliceVar(&names, "state", nil, "Only records that are processing, failed or dead")
	complete(cmd, "state", "processing", "failed", "dead")
	flags.IntVar(&f.MinAttempts, "min-attempts", 0, "Only records with at least this many attempts")
	flags.IntVar(&limit, "limit", 50, "Maximum number of results")
	flags.StringVar(&afterGroup, "after-group", "", "Group to start after, with --after-key")
	flags.StringVar(&afterKey, "after-key", "", "Key to start after, with --after-group")
	return cmd
}

func (a *app) listRecords(ctx context.Context, d *session, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int) error {
	page, err := d.groups.List(ctx, f, afterGroup, afterKey, limit)
	if err != nil {
		return d.store.Clean(err)
	}
	v := view.InboxPage{Records: []view.InboxRecord{}}
	for _, r := range page.Records {
		v.Records = append(v.Records, view.InboxRecordOf(r))
	}
	if page.More {
		v.NextGroup, v.NextKey = page.Group, page.Key.String()
	}
	if a.json {
		return a.printJSON(v)
	}
	if len(v.Records) == 0 {
		fmt.Fprintln(a.Err, "no records")
		return nil
	}
	t := newTable("GROUP", "KEY", "STATE", "TYPE", "TENANT", "TRIES", "DUE", "KEPT", "ERROR")
	for _, r := range v.Records {
		due := r.NextRetryAt
		if due.IsZero() {
			due = r.LeaseUntil
		}
		t.row(r.Group, r.Key, r.State, r.Type, or(r.TenantID), r.Attempts, at(due), yesNo(r.Kept), or(cut(r.LastError, errorWidth)))
	}
	if err := t.writeTo(a.Out); err != nil {
		return err
	}
	if page.More {
		fmt.Fprintf(a.Err, "more results: --after-group %s --after-key %s\n", plain(v.NextGroup), v.NextKey)
	}
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) inboxShow() *cobra.Command {
	return &cobra.Command{
		Use: "show GROUP KEY", Short: "Show the record of one event in a group", Args: needs(2, 2, "a group and a key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args[1:])
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				rec, err := d.groups.Find(ctx, args[0], ids[0])
				if err != nil {
					return notFound(d.store.Clean(err), "the group never received the event, or its record was purged (inbox.retention)")
				}
				v := view.InboxRecordOf(rec)
				if a.json {
					return a.printJSON(v)
				}
				t := &table{}
				for _, row := range [][2]string{
					{"group", v.Group},
					{"key", v.Key.String()},
					{"event", v.EventID.String()},
					{"type", v.Type},
					{"tenant", v.TenantID},
					{"state", v.State},
					{"attempts", fmt.Sprint(v.Attempts)},
					{"received", at(v.ReceivedAt)},
					{"lease until", at(v.LeaseUntil)},
					{"due again", at(v.NextRetryAt)},
					{"processed", at(v.ProcessedAt)},
					{"event kept", yesNo(v.Kept)},
					{"last error", v.LastError},
				} {
					if row[1] != "" && row[1] != "-" {
						t.row(row[0], row[1])
					}
				}
				return t.writeTo(a.Out)
			})
		},
	}
}

func (a *app) inboxRedrive() *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use: "redrive GROUP [KEY…]", Short: "Retry dead and failed records of a group", Args: needs(1, -1, "a group"),
		Long: "Reset the attempts of dead and failed records of a group. A record is retried when its event is delivered again or, if the group\n" +
			"stores its events, by the group itself. --all selects every dead record.",
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseIDs(args[1:])
			if err != nil {
				return err
			}
			if all == (len(keys) > 0) {
				return usage("give keys, or --all", "no records selected")
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.redrive(ctx, d, args[0], keys, yes) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Selection of all dead records of the group")
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

func (a *app) redrive(ctx context.Context, d *session, group string, keys []waybill.ID, yes bool) error {
	var n int
	var err error
	if len(keys) > 0 {
		n, err = d.groups.Redrive(ctx, group, keys...)
	} else {
		if err := a.confirm(yes, "Retry all dead records of "+plain(group)+"?"); err != nil {
			return err
		}
		b := a.bar("redriving")
		n, err = d.groups.RedriveAll(ctx, group, func(p admin.Progress) { b.show(p.Done, p.Total) })
		b.end()
	}
	if a.json {
		if err := a.printJSON(map[string]int{"redriven": n}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Out, "redriven: %d\n", n)
	}
	switch {
	case err != nil:
		return d.store.Clean(err)
	case n < len(keys):
		return partly("waybill inbox show GROUP KEY shows the state of a record", "%d of %d records were neither dead nor failed", len(keys)-n, len(keys))
	}
	return nil
}
