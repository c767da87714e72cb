package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/doctor"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// diagnosis is what doctor found about one relay.
type diagnosis struct {
	Relay    string           `json:"relay,omitempty"`
	Findings []doctor.Finding `json:"findings"`
}

func (a *app) doctor() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the settings and the servers they name: what is wrong, and what to type", Args: needs(0, 0, ""),
		Long: "Check the settings and the servers they name, and say what is wrong and what to type: settings that lose what was committed or delivered,\n" +
			"missing tables, lanes without an owner, old transactions, records that are forgotten too early, what waits for an operator. It only reads.\n" +
			"The exit code is 1 if something is wrong; with --strict, also if something is doubtful.",
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
	cmd.Flags().BoolVar(&strict, "strict", false, "Also fail if something is doubtful")
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

// verdict is an error if something is wrong.
func verdict(all []diagnosis, strict bool) error {
	wrong, doubtful := int64(0), int64(0)
	for _, d := range all {
		for _, f := range d.Findings {
			switch f.Status {
			case doctor.Fail:
				wrong++
			case doctor.Warn:
				doubtful++
			case doctor.OK, doctor.NotChecked:
			}
		}
	}
	switch {
	case wrong > 0:
		return fmt.Errorf("%s failed", count(wrong, "check has", "checks have"))
	case strict && doubtful > 0:
		return fmt.Errorf("%s doubtful", count(doubtful, "thing is", "things are"))
	}
	return nil
}
