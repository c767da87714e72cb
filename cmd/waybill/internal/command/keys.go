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
	"github.com/waybillhq/waybill/store/driver"
)

func (a *app) keys() *cobra.Command {
	return parent("keys", "List and find idempotency keys, and resolve uncertain ones", a.keysList(), a.keysShow(), a.keysFind(), a.keysResolve())
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
		return nil, usage("states: "+strings.Join(names, ", "), "unknown state %q", text)
	}
	return out, nil
}

func (a *app) keysList() *cobra.Command {
	var f store.KeyFilter
	var names []string
	var after store.KeyID
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List keys without a successful answer, or keys of other states with --state", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.States, err = parseKeyStates(names); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
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
	flags.IntVar(&limit, "limit", 50, "Maximum number of results")
	flags.StringVar(&after.Tenant, "after-tenant", "", "Tenant of the key to start after: the last key of the previous page")
	flags.StringVar(&after.Operation, "after-operation", "", "Operation of the key to start after")
	flags.StringVar(&after.Key, "after-key", "", "Key to start after")
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
		defer fmt.Fprintf(a.Err, "more results: --after-tenant '%s' --after-operation '%s' --after-key '%s'\n",
			plain(last.Tenant), plain(last.Operation), plain(last.Key))
	}
	if len(shown) == 0 {
		fmt.Fprintln(a.Err, "no keys")
		return nil
	}
	// The key of a request over HTTP has 64 characters: it goes last, where it
	// wraps.
	t := newTable("TENANT", "OPERATION", "STATE", "TRIES", "CREATED", "EXPIRES", "KEY, ERROR")
	for _, k := range shown {
		text := k.Key
		if k.LastError != "" {
			text += " (" + cut(k.LastError, errorWidth) + ")"
		}
		t.row(or(k.TenantID), k.Operation, k.State, k.Attempts, at(k.CreatedAt), at(k.ExpiresAt), text)
	}
	return t.writeTo(a.Out)
}

// keyFlags adds the tenant, the only part of a key's identity that may be
// empty.
func keyFlags(cmd *cobra.Command, id *store.KeyID) {
	cmd.Flags().StringVar(&id.Tenant, "tenant", "", "Tenant of the key")
}

func (a *app) keysShow() *cobra.Command {
	var id store.KeyID
	cmd := &cobra.Command{
		Use: "show OPERATION KEY", Short: "Show the record of one key, without its answer", Args: needs(2, 2, "an operation and a key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id.Operation, id.Key = args[0], args[1]
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
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

func (a *app) keysFind() *cobra.Command {
	var q admin.KeyQuery
	cmd := &cobra.Command{
		Use: "find KEY", Short: "Find the record of a request by the key that its client sent", Args: needs(1, 1, "a key"),
		Long: "Find the record of a request by the key that its client sent, over HTTP or gRPC, or in a call of package idempotency. The tables\n" +
			"do not contain the keys of HTTP and gRPC clients: the record is found by a hash of tenant, principal, operation and key, and all\n" +
			"of them are needed. Quotes around the value of the header Idempotency-Key are not part of the key.",
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Key = args[0]
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				found, err := d.keys.Search(ctx, q)
				if errors.Is(err, admin.ErrNoKey) {
					const advice = "check --operation, --tenant and --principal, which are part of the hash; an expired key does not exist any more"
					return &coded{&hint.Error{Err: err, Hint: advice}, NotFound}
				}
				if err != nil {
					return d.store.Clean(err)
				}
				return a.printKeys(admin.KeyPage{Records: found})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Operation, "operation", "", "Route of the request, such as 'POST /orders', or full name of the gRPC method")
	flags.StringVar(&q.Tenant, "tenant", "", "Tenant of the request")
	flags.StringVar(&q.Principal, "principal", "", "Principal of the request: the user or client in the Scope of the service")
	return cmd
}

// noKey adds a hint to errors that wrap admin.ErrNoKey, and to no other.
func noKey(err error) error {
	if !errors.Is(err, admin.ErrNoKey) {
		return err
	}
	return &coded{&hint.Error{Err: err, Hint: "check --tenant; an expired key does not exist any more"}, NotFound}
}

func (a *app) keysResolve() *cobra.Command {
	var id store.KeyID
	var failed, yes bool
	var answer, ref, retention, contentType string
	cmd := &cobra.Command{
		Use: "resolve OPERATION KEY", Short: "Resolve an uncertain key", Args: needs(2, 2, "an operation and a key"),
		Long: "Resolve an uncertain key: its run failed after an effect that must not happen twice. Find out whether the effect happened; then set\n" +
			"either --failed, which allows another run, or --answer, which is returned to repeated requests.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id.Operation, id.Key = args[0], args[1]
			answered := cmd.Flags().Changed("answer")
			if failed == answered {
				return usage("add --failed, or --answer JSON", "exactly one of --failed and --answer is required")
			}
			keep, err := settings.ParseDuration(retention)
			if err != nil || keep <= 0 {
				return usage("write --retention 24h", "--retention %s is not a duration", retention)
			}
			decide := func(ctx context.Context, d *session) error {
				return d.keys.RunAgain(ctx, id, "an operator decided that the effect did not happen", keep)
			}
			if answered {
				if !json.Valid([]byte(answer)) && contentType == waybill.JSON {
					return usage("set --content-type for other formats", "--answer is not valid JSON")
				}
				decide = func(ctx context.Context, d *session) error {
					return d.keys.Done(ctx, id, driver.KeyAnswer{Ref: ref, Result: []byte(answer), ContentType: contentType, Retention: keep})
				}
			}
			if err := a.confirm(yes, "Resolve "+plain(id.Operation+" "+id.Key)+" as "+map[bool]string{true: "failed", false: "succeeded"}[failed]+"?"); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.resolved(d, decide(ctx, d), failed) })
		},
	}
	keyFlags(cmd, &id)
	flags := cmd.Flags()
	flags.BoolVar(&failed, "failed", false, "Resolution as failed: the effect did not happen, and the key can run again")
	flags.StringVar(&answer, "answer", "", "Answer for repeated requests: the effect happened")
	flags.StringVar(&contentType, "content-type", waybill.JSON, "Content type of the answer")
	flags.StringVar(&ref, "ref", "", "Reference to the created object, with --answer")
	flags.StringVar(&retention, "retention", settings.FormatDuration(24*time.Hour), "Retention of the resolution")
	flags.BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

// resolved prints the resolution.
func (a *app) resolved(d *session, err error, failed bool) error {
	switch {
	case errors.Is(err, admin.ErrNotUncertain):
		return &hint.Error{Err: err, Hint: "only uncertain keys can be resolved"}
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
