package command

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The build of a release sets these with the linker's flag -X. Other builds
// have what the go command recorded.
var (
	release string // the tag
	commit  string // the full hash
)

// versionView is the output of waybill version.
type versionView struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program and its commit", Args: needs(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v := describe(info)
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintln(a.Out, v)
			return nil
		},
	}
}

// describe returns what is known of this program. info may be nil.
func describe(info *debug.BuildInfo) versionView {
	v := versionView{Version: release, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" {
		v.Version = "unknown"
	}
	if v.Commit != "" { // the recorded one belongs to the same build
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v versionView) String() string {
	text := "waybill " + v.Version
	if v.Commit != "" {
		text += " commit " + v.Commit
	}
	if v.Modified {
		text += " with changes"
	}
	return text + " " + v.Go + " " + v.Platform
}
