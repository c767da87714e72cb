package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

func (a *app) keys() *cobra.Command {
	return parent("keys", "Idempotency keys: list them, decide about uncertain ones", a.keysList(), a.keysShow(), a.keysResolve())
}

var keyStates = []store.KeyState{store.KeyProcessing, store.KeySucceeded, store.KeyFailed, store.KeyUncertain}

func parseKeyStates(texts []string) ([]store.KeyState, error) {
	var out []store.KeyState
next:
	for _, text := range texts {
		var names []string
		for _, s := range keyStates {
			if s.String() == text {
				out = append(out, s)
				continue next
			}
			names = append(names, s.String())
		}
		return nil, usage("there are "+strings.Join(names, ", "), "no state is called %q", text)
	}
	return out, nil
}

func (a *app) keysList() *cobra.Command {
	var f store.KeyFilter
	var names []string
	var after store.KeyID
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List keys that did not succeed; with --state, others", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.States, err = parseKeyStates(names); err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
				page, err := d.keys.List(ctx, f, after, max(limit, 1))
				if err != nil {
					return d.store.Clean(err)
				}
				return a.printKeys(page)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Tenant, "tenant", "", "Only keys of this tenant")
	flags.StringVar(&f.Operation, "operation", "", "Only keys of this operation")
	flags.StringSliceVar(&names, "state", nil, "Only keys that are processing, succeeded, failed or uncertain")
	complete(cmd, "state", "processing", "succeeded", "failed", "uncertain")
	flags.IntVar(&limit, "limit", 50, "How many")
	flags.StringVar(&after.Tenant, "after-tenant", "", "Where to begin: the last key of the page before")
	flags.StringVar(&after.Operation, "after-operation", "", "As above")
	flags.StringVar(&after.Key, "after-key", "", "As above")
	return cmd
}

func (a *app) printKeys(page admin.KeyPage) error {
	shown := []view.KeyRecord{}
	for _, r := range page.Records {
		shown = append(shown, view.KeyRecordOf(r))
	}
	if a.json {
		return a.printJSON(map[string]any{"keys": shown, "more": page.More})
	}
	if page.More {
		last := page.After
		defer fmt.Fprintf(a.Err, "there may be more: --after-tenant '%s' --after-operation '%s' --after-key '%s'\n",
			plain(last.Tenant), plain(last.Operation), plain(last.Key))
	}
	if len(shown) == 0 {
		fmt.Fprintln(a.Err, "no keys")
		return nil
	}
	t := newTable("TENANT", "OPERATION", "KEY", "STATE", "TRIES", "CREATED", "EXPIRES", "ERROR")
	for _, k := range shown {
		t.row(or(k.TenantID), k.Operation, k.Key, k.State, k.Attempts, at(k.CreatedAt), at(k.ExpiresAt), or(cut(k.LastError, errorWidth)))
	}
	return t.writeTo(a.Out)
}

// keyFlags adds the tenant, the only part of a key's name that may be empty.
func keyFlags(cmd *cobra.Command, id *store.KeyID) {
	cmd.Flags().StringVar(&id.Tenant, "tenant", "", "The key's tenant")
}

func (a *app) keysShow() *cobra.Command {
	var id store.KeyID
	cmd := &cobra.Command{
		Use: "show OPERATION KEY", Short: "The record of one key, without its answer", Args: needs(2, 2, "an operation and a key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id.Operation, id.Key = args[0], args[1]
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
				rec, err := d.keys.Find(ctx, id)
				if err != nil {
					return noKey(d.store.Clean(err))
				}
				if a.json {
					return a.printJSON(view.KeyRecordOf(rec))
				}
				return a.printKeys(admin.KeyPage{Records: []store.KeyRecord{rec}})
			})
		},
	}
	keyFlags(cmd, &id)
	return cmd
}

// noKey adds a hint to an error that says that there is no such key, and to no other.
func noKey(err error) error {
	if !errors.Is(err, admin.ErrNoKey) {
		return err
	}
	return &coded{&hint.Error{Err: err, Hint: "is the tenant right? a key that has expired is as good as none"}, NotFound}
}

func (a *app) keysResolve() *cobra.Command {
	var id store.KeyID
	var failed, yes bool
	var answer, ref, ttl, contentType string
	cmd := &cobra.Command{
		Use: "resolve OPERATION KEY", Short: "Decide about an uncertain key", Args: needs(2, 2, "an operation and a key"),
		Long: "Decide about an uncertain key: one whose run failed after something had happened that must not happen twice. Find out whether it\n" +
			"happened; then either --failed, and the key may be used again, or --answer with what repeats are to be told.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id.Operation, id.Key = args[0], args[1]
			answered := cmd.Flags().Changed("answer")
			if failed == answered {
				return usage("add --failed, or --answer JSON", "did it happen, or not?")
			}
			keep, err := settings.ParseDuration(ttl)
			if err != nil || keep <= 0 {
				return usage("write --ttl 24h", "--ttl %s is not a time span", ttl)
			}
			decide := func(ctx context.Context, d *desk) error {
				return d.keys.RunAgain(ctx, id, "an operator says that it did not happen", keep)
			}
			if answered {
				if !json.Valid([]byte(answer)) && contentType == waybill.JSON {
					return usage("or say what it is with --content-type", "--answer is not JSON")
				}
				decide = func(ctx context.Context, d *desk) error {
					return d.keys.Done(ctx, id, store.KeyAnswer{Ref: ref, Result: []byte(answer), ContentType: contentType, TTL: keep})
				}
			}
			if err := a.confirm(yes, "Decide that "+plain(id.Operation+" "+id.Key)+" "+map[bool]string{true: "did not happen", false: "happened"}[failed]+"?"); err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error { return a.resolved(d, decide(ctx, d), failed) })
		},
	}
	keyFlags(cmd, &id)
	flags := cmd.Flags()
	flags.BoolVar(&failed, "failed", false, "It did not happen: the key may be used again")
	flags.StringVar(&answer, "answer", "", "It happened, and this is the answer for repeats")
	flags.StringVar(&contentType, "content-type", waybill.JSON, "What the answer is")
	flags.StringVar(&ref, "ref", "", "A reference to what was made, with --answer")
	flags.StringVar(&ttl, "ttl", settings.FormatDuration(24*time.Hour), "How long the decision is remembered")
	flags.BoolVar(&yes, "yes", false, "Do not ask")
	return cmd
}

// resolved says what was decided.
func (a *app) resolved(d *desk, err error, failed bool) error {
	switch {
	case errors.Is(err, admin.ErrNotUncertain):
		return &hint.Error{Err: err, Hint: "only an uncertain key needs a decision"}
	case err != nil:
		return noKey(d.store.Clean(err))
	}
	state := store.KeySucceeded
	if failed {
		state = store.KeyFailed
	}
	if a.json {
		return a.printJSON(map[string]any{"resolved": true, "state": state.String()})
	}
	fmt.Fprintf(a.Out, "resolved: %s\n", state)
	return nil
}
