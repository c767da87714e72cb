package command

import (
	"io"

	"github.com/spf13/cobra"
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
