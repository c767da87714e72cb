package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store/driver"
)

// actor is who runs the command, for the audit. With sudo it is the user who
// called sudo.
func (a *app) actor(s *settings.Settings) admin.Actor {
	name := s.Actor
	for _, pair := range a.Environ {
		if caller, ok := strings.CutPrefix(pair, "SUDO_USER="); ok {
			name = cmp.Or(name, caller)
		}
	}
	if u, err := user.Current(); err == nil {
		name = cmp.Or(name, u.Username)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return admin.Actor{Name: cmp.Or(name, "unknown"), Via: "cli", Address: host}
}

func (a *app) audit() *cobra.Command {
	var f admin.AuditFilter
	var since, until, after string
	var limit int
	cmd := &cobra.Command{
		Use: "audit", Short: "List the changes of operators, newest first", Args: needs(0, 0, ""),
		Long: "List the changes that operators made with this program, the HTTP API, the dashboard and package admin: who, when, what, and how many\n" +
			"rows. Each change is recorded in its own transaction. Records are kept for a year.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			for _, bound := range []struct {
				flag, text string
				to         *time.Time
			}{{"since", since, &f.Since}, {"until", until, &f.Until}} {
				if !cmd.Flags().Changed(bound.flag) {
					continue
				}
				at, err := moment(bound.flag, bound.text, now)
				if err != nil {
					return err
				}
				*bound.to = at
			}
			before, err := view.ParseAuditCursor(after)
			if err != nil {
				return usage("copy it from the end of the previous page", "--after: %s", err.Error())
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.listAudit(ctx, d, f, before, max(limit, 1)) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&since, "since", "", "Only changes at or after this time, or since this long ago; empty: all")
	flags.StringVar(&until, "until", "", "Only changes before this time, or until this long ago; empty: until now")
	flags.StringVar(&f.Actor, "actor", "", "Only changes of this actor")
	flags.StringVar(&f.Action, "action", "", "Only changes of this kind, such as replay")
	flags.IntVar(&limit, "limit", 50, "Maximum number of results")
	flags.StringVar(&after, "after", "", "Position to start after: the end of the previous page")
	return cmd
}

func (a *app) listAudit(ctx context.Context, d *session, f admin.AuditFilter, before driver.AuditCursor, limit int) error {
	page, err := d.audit.List(ctx, f, before, limit)
	if err != nil {
		return d.store.Clean(err)
	}
	v := view.AuditOf(page)
	if a.json {
		return a.printJSON(v)
	}
	if len(v.Records) == 0 {
		fmt.Fprintln(a.Err, "no records")
		return nil
	}
	t := newTable("AT", "ACTOR", "VIA", "ACTION", "DESTINATION", "ROWS", "TARGET")
	for _, r := range v.Records {
		t.row(at(r.At), r.Actor, r.Via, r.Action, or(r.Destination), r.Count, or(cut(r.Target, errorWidth)))
	}
	if err := t.writeTo(a.Out); err != nil {
		return err
	}
	if v.Next != "" {
		fmt.Fprintf(a.Err, "more results: --after %s\n", v.Next)
	}
	return nil
}
