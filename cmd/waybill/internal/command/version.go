package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionView is the output of waybill version.
type versionView struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: needs(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			v := versionView{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Version = info.Main.Version
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						v.Revision = s.Value
					case "vcs.modified":
						v.Modified = s.Value == "true"
					}
				}
			}
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.Out, "waybill %s %s %s\n", or(v.Version), v.Go, v.Platform)
			return nil
		},
	}
}
