package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// app is one run of the program.
type app struct {
	Streams
	config, relay string
	json          bool
	scrubber      *settings.Scrubber // nil until the settings are known
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "waybill",
		Short: "Run and operate a transactional outbox",
		Long: `Waybill delivers events that transactions wrote to an outbox: an event is published if and only if its transaction commits.

  waybill serve          deliver events; without settings: ./waybill.db and a JetStream server in this process
  waybill stats          count pending, failed and dead events
  waybill dead list      list dead letters and their errors
  waybill show ID        show the state and history of one event

Every setting is a flag, an environment variable and a key in the file; waybill config lists all settings with their values and origins.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVarP(&a.config, "config", "c", "", "File of settings (also "+settings.ConfigVariable+"); default: "+settings.DefaultFile+", if it exists")
	flags.StringVar(&a.relay, "relay", "", "Name of the relay in the file (also "+settings.RelayVariable+")")
	flags.BoolVar(&a.json, "json", false, "Output as JSON instead of tables")
	settings.AddFlags(flags, ofStore)
	root.SetFlagErrorFunc(wrongFlag)
	root.AddCommand(a.commands()...)
	completeSettings(root)
	root.CompletionOptions.DisableDefaultCmd = true // completion.go
	return root
}

// commands returns every command. A new command is a line here.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.serve(), a.demo(), a.soak(), a.migrate(), a.configure(), a.stats(), a.list(), a.show(), a.tail(), a.dead(), a.blocked(), a.destinations(),
		a.replay(), a.inbox(), a.keys(), a.audit(), a.events(), a.purge(), a.send(), a.imports(), a.reconcile(), a.restored(), a.doctor(), a.version(), a.completion(),
	}
}

// parent returns a command that only has subcommands.
func parent(name, short string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: cobra.ArbitraryArgs, RunE: unknownCommand}
	cmd.AddCommand(below...)
	return cmd
}

// ofStore reports whether a setting is a flag of every command: the settings of
// the store.
func ofStore(k settings.Key) bool { return strings.HasPrefix(k.Name, "store.") }

// wrongFlag converts errors about unknown flags and missing values.
func wrongFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	advice := "see " + cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := hint.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			advice = "did you mean --" + near + "?"
		}
		return usage(advice, "%s has no flag --%s", cmd.CommandPath(), unknown.GetSpecifiedName())
	}
	return usage(advice, "%s", err.Error())
}

// load reads the settings. The scrubber knows the secrets in flags and
// variables before any error can occur.
func (a *app) load(cmd *cobra.Command) (*settings.Loaded, error) {
	given := settings.GivenFlags(cmd.Flags())
	a.scrubber = settings.NewScrubber(settings.GivenSecrets(given, a.Environ)...)
	loaded, err := settings.Load(settings.Sources{Config: a.config, Flags: given, Environ: a.Environ})
	if err != nil {
		return nil, err
	}
	a.scrubber = settings.NewScrubber(loaded.Secrets()...)
	return loaded, nil
}

// pick reads the settings of the relay that the command uses.
func (a *app) pick(cmd *cobra.Command) (*settings.Settings, error) {
	loaded, err := a.load(cmd)
	if err != nil {
		return nil, err
	}
	one, err := loaded.Pick(a.relayName())
	if err != nil {
		return nil, &coded{err, Usage}
	}
	return one, nil
}

func (a *app) relayName() string {
	if a.relay != "" {
		return a.relay
	}
	for _, pair := range a.Environ {
		if name, ok := strings.CutPrefix(pair, settings.RelayVariable+"="); ok {
			return name
		}
	}
	return ""
}

// session is an open store with the administrative functions over it.
type session struct {
	// Outbox is the outbox, or the backlog of the destination that the command
	// names.
	*admin.Outbox
	destinations *admin.Destinations
	groups       *admin.Inbox
	keys         *admin.Keys
	audit        *admin.Audit
	store        *connect.Store
	settings     *settings.Settings
}

// withStore opens a store with its tables and runs a command on it.
func (a *app) withStore(cmd *cobra.Command, fn func(ctx context.Context, d *session) error) error {
	s, err := a.pick(cmd)
	if err != nil {
		return err
	}
	return a.open(cmd.Context(), s, false, func(ctx context.Context, st *connect.Store) error {
		if err := st.Ready(ctx); err != nil {
			return err
		}
		d := &session{store: st, settings: s}
		cfg := admin.Config{BatchSize: s.Purge.BatchSize, Captured: s.CDC.Enabled}
		if d.Outbox, err = admin.NewOutbox(st, cfg); err != nil {
			return err
		}
		if d.destinations, err = admin.NewDestinations(st, cfg); err != nil {
			return err
		}
		if d.groups, err = admin.NewInbox(st, cfg); err != nil {
			return err
		}
		if d.keys, err = admin.NewKeys(st, cfg); err != nil {
			return err
		}
		if d.audit, err = admin.NewAudit(st, cfg); err != nil {
			return err
		}
		return fn(admin.WithActor(ctx, a.actor(s)), d)
	})
}

// open opens the store while fn runs.
func (a *app) open(ctx context.Context, s *settings.Settings, create bool, fn func(ctx context.Context, st *connect.Store) error) error {
	st, err := connect.OpenStore(ctx, s.Store, create)
	if err != nil {
		return err
	}
	err = fn(ctx, st)
	if closing := st.Close(); err == nil && closing != nil {
		err = fmt.Errorf("closing the store: %w", st.Clean(closing))
	}
	return err
}

// Names returns the full names of all commands without subcommands.
func Names() []string {
	var names []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if !cmd.HasSubCommands() {
			names = append(names, cmd.CommandPath())
		}
	}
	walk((&app{}).root())
	return names
}
