package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/httpapi"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/telemetry"
	"github.com/waybillhq/waybill/observe"
)

func (a *app) serve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "Deliver events and maintain the tables", Args: needs(0, 0, ""),
		Long: "Deliver events from stores to sinks, purge old events, inbox records and idempotency keys, and run jobs. serve runs all relays of\n" +
			"the file, or the one that --relay names. On a signal it finishes the deliveries in flight (relay.drain-timeout) and stops; all other\n" +
			"events stay pending.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.load(cmd)
			if err != nil {
				return err
			}
			if name := a.relayName(); name != "" {
				one, err := loaded.Pick(name)
				if err != nil {
					return &coded{err, Usage}
				}
				loaded.Relays = []*settings.Settings{one}
			}
			a.warn(loaded)
			if err := httpapi.Check(loaded.Daemon().HTTP); err != nil { // before tables are created for a daemon that cannot run
				return &coded{err, Usage}
			}
			return a.runDaemon(cmd.Context(), loaded)
		},
	}
	settings.AddFlags(cmd.Flags(), notOfStore)
	return cmd
}

// runDaemon opens the daemon with its metrics and HTTP API, and runs it.
func (a *app) runDaemon(ctx context.Context, loaded *settings.Loaded) (err error) {
	counts, err := telemetry.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, counts.Close(context.WithoutCancel(ctx))) }()
	info, _ := debug.ReadBuildInfo()
	cfg := daemon.Config{Logger: a.logger(loaded.Daemon().Log), Out: a.Out, Version: describe(info).Version}
	cfg.Observe = func(s *settings.Settings) (observe.Hooks, error) {
		o, err := counts.Observer(s.Metrics.Prefix, s.Name)
		if err != nil {
			return observe.Hooks{}, hint.New("change metrics.prefix", "%w", err)
		}
		return o.Hooks(), nil
	}
	if loaded.Daemon().HTTP.Enabled {
		cfg.Extra = func(d *daemon.Daemon) ([]daemon.Component, error) {
			c, err := httpapi.Component(d, counts.Handler(), examine)
			return []daemon.Component{c}, err
		}
	}
	d, err := daemon.Open(ctx, loaded, cfg)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// logger returns the logger of the settings. Every line is scrubbed, because
// drivers and clients log arbitrary texts.
func (a *app) logger(s settings.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.Level)); err != nil { // the settings have checked it
		level = slog.LevelInfo
	}
	out := scrubbed{a.Err, a.scrubber}
	options := &slog.HandlerOptions{Level: level}
	if s.Format == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}

// scrubbed is a writer that removes secrets. Handlers write whole lines, so no
// secret is split.
type scrubbed struct {
	to       io.Writer
	scrubber *settings.Scrubber
}

func (s scrubbed) Write(p []byte) (int, error) {
	if _, err := io.WriteString(s.to, s.scrubber.Clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
