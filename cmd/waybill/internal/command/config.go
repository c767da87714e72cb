package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// settingView is a setting in the output of waybill config.
type settingView struct {
	Key      string `json:"key"`
	Value    string `json:"value"`
	Source   string `json:"source"`
	Default  string `json:"default"`
	Unit     string `json:"unit"`
	Flag     string `json:"flag"`
	Variable string `json:"variable"`
	Help     string `json:"help"`
}

type relayView struct {
	Relay    string        `json:"relay,omitempty"`
	Settings []settingView `json:"settings"`
}

func (a *app) configure() *cobra.Command {
	var changed bool
	cmd := &cobra.Command{
		Use: "config", Short: "List every setting with its value and origin", Args: needs(0, 0, ""),
		Long: "List every setting with its value and origin. A flag overrides the environment, the environment overrides the file, and the file\n" +
			"overrides the default.\n" +
			"Passwords and tokens are not shown.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.load(cmd)
			if err != nil {
				return err
			}
			relays := loaded.Relays
			if name := a.relayName(); name != "" {
				one, err := loaded.Pick(name)
				if err != nil {
					return &coded{err, Usage}
				}
				relays = []*settings.Settings{one}
			}
			a.warn(loaded)
			if a.json {
				return a.printJSON(map[string]any{"file": loaded.File, "relays": relayViews(relays, changed)})
			}
			return a.printSettings(relays, changed)
		},
	}
	settings.AddFlags(cmd.Flags(), notOfStore)
	cmd.Flags().BoolVar(&changed, "changed", false, "Only settings that differ from the default")
	return cmd
}

// notOfStore reports whether a setting is a flag of serve, config and doctor
// only.
func notOfStore(k settings.Key) bool { return !ofStore(k) }

// warn prints the warnings about the settings.
func (a *app) warn(loaded *settings.Loaded) {
	for _, w := range loaded.Warnings {
		fmt.Fprintln(a.Err, "waybill: warning:", plain(w))
	}
}

func relayViews(relays []*settings.Settings, changed bool) []relayView {
	out := []relayView{}
	for _, r := range relays {
		v := relayView{Relay: r.Name, Settings: []settingView{}}
		for _, s := range r.Values() {
			if changed && s.Source == "default" {
				continue
			}
			k := s.Key
			v.Settings = append(v.Settings, settingView{
				Key: k.Name, Value: s.Text, Source: s.Source, Default: k.Default, Unit: k.Unit, Flag: "--" + k.Flag(), Variable: k.Variable(), Help: k.Help,
			})
		}
		out = append(out, v)
	}
	return out
}

func (a *app) printSettings(relays []*settings.Settings, changed bool) error {
	for i, r := range relayViews(relays, changed) {
		if r.Relay != "" {
			if i > 0 {
				fmt.Fprintln(a.Out)
			}
			fmt.Fprintf(a.Out, "relay %s\n\n", r.Relay)
		}
		t := newTable("KEY", "VALUE", "SOURCE")
		for _, s := range r.Settings {
			t.row(s.Key, or(s.Value), s.Source)
		}
		if err := t.writeTo(a.Out); err != nil {
			return err
		}
	}
	return nil
}
