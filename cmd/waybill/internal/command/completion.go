package command

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// shell is a shell with a completion script.
type shell struct {
	name, title string
	// load describes how to load the script into the shell.
	load  string
	write func(root *cobra.Command, out io.Writer) error
}

func shells() []shell {
	return []shell{
		{
			"bash", "bash", "  source <(waybill completion bash)                                        current session\n" +
				"  waybill completion bash > /etc/bash_completion.d/waybill                 permanently; requires the package bash-completion",
			func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
		},
		{
			"zsh", "zsh", "  source <(waybill completion zsh)                                         current session; requires compinit\n" +
				"  waybill completion zsh > \"${fpath[1]}/_waybill\"                          permanently",
			(*cobra.Command).GenZshCompletion,
		},
		{
			"fish", "fish", "  waybill completion fish | source                                         current session\n" +
				"  waybill completion fish > ~/.config/fish/completions/waybill.fish        permanently",
			func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
		},
		{
			"powershell", "PowerShell", "  waybill completion powershell | Out-String | Invoke-Expression           current session; permanently: in your profile",
			(*cobra.Command).GenPowerShellCompletionWithDesc,
		},
	}
}

// complete registers the values that a shell offers for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	// The call fails for an unknown flag or a flag with values: a mistake in
	// this program that its test finds.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeSettings registers the values of every flag that is a setting with
// known values, for a command and all its subcommands.
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

// valuesOf returns the values of a setting, or their prefixes.
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

// completion replaces cobra's own command, so that its errors look like all
// others.
func (a *app) completion() *cobra.Command {
	var below []*cobra.Command
	for _, sh := range shells() {
		below = append(below, &cobra.Command{
			Use: sh.name, Short: "Print the completion script for " + sh.title, Args: needs(0, 0, ""),
			Long: "Print the completion script for " + sh.title + ". To use it:\n\n" + sh.load,
			RunE: func(cmd *cobra.Command, _ []string) error { return sh.write(cmd.Root(), a.Out) },
		})
	}
	return parent("completion", "Print shell completion scripts", below...)
}
