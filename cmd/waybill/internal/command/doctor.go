package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/doctor"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/dashboard"
)

// diagnosis is the result of doctor for one relay.
type diagnosis struct {
	Relay    string           `json:"relay,omitempty"`
	Findings []doctor.Finding `json:"findings"`
}

func (a *app) doctor() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the settings and their servers, and suggest fixes", Args: needs(0, 0, ""),
		Long: "Check the settings and their servers, and suggest fixes: settings that lose committed or delivered events, missing tables, lanes without\n" +
			"an owner, old transactions, inbox records that expire too early, items that wait for an operator. The checks only read.\n" +
			"The exit code is 1 if a check fails; with --strict, also if a check warns.",
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
			all := []diagnosis{}
			for _, s := range relays {
				all = append(all, diagnosis{s.Name, doctor.Run(cmd.Context(), doctor.Config{Settings: s})})
			}
			if err := a.printDiagnoses(all); err != nil {
				return err
			}
			return verdict(all, strict)
		},
	}
	settings.AddFlags(cmd.Flags(), notOfStore)
	cmd.Flags().BoolVar(&strict, "strict", false, "Exit code 1 also for warnings")
	return cmd
}

func (a *app) printDiagnoses(all []diagnosis) error {
	if a.json {
		return a.printJSON(map[string]any{"relays": all})
	}
	for i, d := range all {
		if d.Relay != "" {
			if i > 0 {
				fmt.Fprintln(a.Out)
			}
			fmt.Fprintf(a.Out, "relay %s\n\n", d.Relay)
		}
		t := newTable("CHECK", "STATUS", "FINDING")
		for _, f := range d.Findings {
			t.row(f.Check, string(f.Status), f.Text)
			if f.Type != "" {
				t.row("", "", "type: "+f.Type)
			}
		}
		if err := t.writeTo(a.Out); err != nil {
			return err
		}
	}
	return nil
}

// verdict returns an error if a check failed.
func verdict(all []diagnosis, strict bool) error {
	fails, warnings := int64(0), int64(0)
	for _, d := range all {
		for _, f := range d.Findings {
			switch f.Status {
			case doctor.Fail:
				fails++
			case doctor.Warn:
				warnings++
			case doctor.OK, doctor.NotChecked:
			}
		}
	}
	switch {
	case fails > 0:
		return fmt.Errorf("%s failed", count(fails, "check", "checks"))
	case strict && warnings > 0:
		return fmt.Errorf("%s", count(warnings, "warning", "warnings"))
	}
	return nil
}

// examine runs the checks for the dashboard.
func examine(ctx context.Context, s *settings.Settings) []dashboard.Finding {
	var out []dashboard.Finding
	for _, f := range doctor.Run(ctx, doctor.Config{Settings: s}) {
		out = append(out, dashboard.Finding{Check: f.Check, Status: string(f.Status), Text: f.Text, Command: f.Type})
	}
	return out
}
