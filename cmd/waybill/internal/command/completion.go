package command

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// shell is one that can complete the program's words when somebody presses Tab.
type shell struct {
	name, title string
	// load says how the script gets into a shell.
	load  string
	write func(root *cobra.Command, out io.Writer) error
}

func shells() []shell {
	return []shell{
		{
			"bash", "bash", "  source <(waybill completion bash)                                        now\n" +
				"  waybill completion bash > /etc/bash_completion.d/waybill                 for good; it needs the package bash-completion",
			func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
		},
		{
			"zsh", "zsh", "  source <(waybill completion zsh)                                         now; it needs compinit\n" +
				"  waybill completion zsh > \"${fpath[1]}/_waybill\"                          for good",
			(*cobra.Command).GenZshCompletion,
		},
		{
			"fish", "fish", "  waybill completion fish | source                                         now\n" +
				"  waybill completion fish > ~/.config/fish/completions/waybill.fish        for good",
			func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
		},
		{
			"powershell", "PowerShell", "  waybill completion powershell | Out-String | Invoke-Expression           now; for good, in your profile",
			(*cobra.Command).GenPowerShellCompletionWithDesc,
		},
	}
}

// complete has a shell offer the values that a flag can have.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// It fails for a flag that does not exist or has values already: a mistake of this program,
	// which its test finds.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeSettings does so for every flag that is a setting with known values, here and in all
// commands below.
func completeSettings(cmd *cobra.Command) {
	for _, k := range settings.Table() {
		if values := valuesOf(k); len(values) > 0 && (cmd.Flags().Lookup(k.Flag()) != nil || cmd.PersistentFlags().Lookup(k.Flag()) != nil) {
			complete(cmd, k.Flag(), values...)
		}
	}
	for _, sub := range cmd.Commands() {
		completeSettings(sub)
	}
}

// valuesOf returns what a setting can be, or how it begins.
func valuesOf(k settings.Key) []string {
	switch k.Name {
	case "store.url":
		return connect.StoreSchemes()
	case "sink.url":
		values := []string{"nats:embedded"}
		for _, kind := range connect.SinkKinds() {
			values = append(values, kind.Schemes...)
		}
		return values
	}
	return k.Choices()
}

// completion replaces the command of that name that cobra would add: its mistakes are told like all others.
func (a *app) completion() *cobra.Command {
	var below []*cobra.Command
	for _, sh := range shells() {
		below = append(below, &cobra.Command{
			Use: sh.name, Short: "Print the completion script for " + sh.title, Args: needs(0, 0, ""),
			Long: "Print the completion script for " + sh.title + ". To use it:\n\n" + sh.load,
			RunE: func(cmd *cobra.Command, _ []string) error { return sh.write(cmd.Root(), a.Out) },
		})
	}
	return parent("completion", "Complete commands and flags when Tab is pressed", below...)
}
