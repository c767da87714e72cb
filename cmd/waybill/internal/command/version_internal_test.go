package command

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// TestVersion: a release has the tag and the commit of its build, and every
// other build has what the go command recorded.
func TestVersion(t *testing.T) {
	recorded := &debug.BuildInfo{
		Main:     debug.Module{Version: "v0.0.0-20260105101010-aaaaaaaaaaaa"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "aaaa"}, {Key: "vcs.modified", Value: "true"}},
	}
	for _, tc := range []struct {
		name, release, commit string
		info                  *debug.BuildInfo
		want                  string
	}{
		{"release", "v0.3.0", "bbbb", recorded, "waybill v0.3.0 commit bbbb"},
		{"release without records", "v0.3.0", "bbbb", nil, "waybill v0.3.0 commit bbbb"},
		{"go build", "", "", recorded, "waybill v0.0.0-20260105101010-aaaaaaaaaaaa commit aaaa with changes"},
		{"go install", "", "", &debug.BuildInfo{Main: debug.Module{Version: "v0.3.0"}}, "waybill v0.3.0"},
		{"nothing", "", "", nil, "waybill unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			release, commit = tc.release, tc.commit
			defer func() { release, commit = "", "" }()
			want := tc.want + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
			if got := describe(tc.info).String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
