package repocheck_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// maxModules is the maximum number of modules in go.work.
const maxModules = 19

// testLibraries are the libraries that a released module may require only for
// its tests, and the modules that may; nil stands for all.
var testLibraries = map[string][]string{
	"go.uber.org/goleak":                  nil,
	"github.com/nats-io/nats.go":          {"broker/natsembed"}, // the server requires it as well
	"go.opentelemetry.io/otel/sdk":        {"observe/otelobserve"},
	"go.opentelemetry.io/otel/sdk/metric": {"observe/otelobserve"},
}

// servers are requirements that belong in internal/e2e, and the modules that
// may have them, directly or indirectly. The program runs an embedded server.
var servers = map[string][]string{
	"github.com/Shopify/toxiproxy/v2":    nil,
	"github.com/nats-io/nats-server/v2":  {"broker/natsembed", "cmd/waybill"},
	"github.com/prometheus/prometheus":   nil,
	"github.com/twmb/franz-go/pkg/kfake": nil,
}

// apart are the modules that are not in go.work. They import no module of the
// repository; their doc.go has the reason.
var apart = []string{"internal/deploycheck"}

// goMod is what "go mod edit -json" prints of a go.mod file.
type goMod struct {
	folder    string
	Go        string
	Toolchain string
	Require   []struct {
		Path     string
		Indirect bool
	}
	Replace []struct{ Old struct{ Path string } }
}

// goWork is what "go work edit -json" prints of go.work.
type goWork struct {
	Go        string
	Toolchain string
	Use       []struct{ DiskPath string }
}

// TestModules: go.work has few modules and all of them but those apart, all
// have the same go directive, and none has a replace directive.
func TestModules(t *testing.T) {
	work, mods := readModules(t)
	for _, finding := range judgeModules(work, mods) {
		t.Error(finding)
	}
}

// judgeModules returns error texts about go.work and the go.mod files.
func judgeModules(work goWork, mods []goMod) []string {
	var findings []string
	if len(work.Use) > maxModules {
		findings = append(findings, fmt.Sprintf("go.work has %d modules, want at most %d", len(work.Use), maxModules))
	}
	used := map[string]bool{}
	for _, use := range work.Use {
		used[path.Clean(use.DiskPath)] = true
	}
	for _, mod := range mods {
		if !used[mod.folder] && !slices.Contains(apart, mod.folder) {
			findings = append(findings, mod.folder+"/go.mod: the module is not in go.work")
		}
		if mod.Go != work.Go || mod.Toolchain != work.Toolchain {
			findings = append(findings, mod.folder+"/go.mod: go "+mod.Go+" "+mod.Toolchain+", and go.work has go "+work.Go+" "+work.Toolchain)
		}
		for _, r := range mod.Replace {
			findings = append(findings, mod.folder+"/go.mod replaces "+r.Old.Path)
		}
		for _, need := range mod.Require {
			if slices.Contains(apart, mod.folder) && strings.HasPrefix(need.Path, "github.com/waybillhq/waybill") {
				findings = append(findings, mod.folder+"/go.mod requires "+need.Path+", which only go.work provides")
			}
		}
	}
	return findings
}

// TestReleasedRequirements: no released module requires a library only for its
// tests, except testLibraries, and none requires one of servers.
func TestReleasedRequirements(t *testing.T) {
	_, mods := readModules(t)
	files, direct := parseImports(t), 0
	for _, mod := range mods {
		if strings.HasPrefix(mod.folder, "internal/") {
			continue
		}
		imported := map[string]bool{}
		for _, f := range files {
			if !f.test && owner(mods, f.folder()) == mod.folder {
				for _, name := range f.imports {
					imported[mod.provider(name)] = true
				}
			}
		}
		for _, need := range mod.Require {
			if !need.Indirect {
				direct++
			}
			if finding := judgeRequirement(mod.folder, need.Path, need.Indirect || imported[need.Path]); finding != "" {
				t.Error(finding)
			}
		}
	}
	if direct < 30 {
		t.Errorf("only %d direct requirements were read", direct)
	}
}

// judgeRequirement returns an error text if the released module in folder must
// not have a requirement, or "". used is false if only tests import it.
func judgeRequirement(folder, need string, used bool) string {
	if may, ok := servers[need]; ok && !slices.Contains(may, folder) {
		return folder + "/go.mod requires " + need + "; its tests belong in internal/e2e"
	}
	// The tests of the program drive the servers of its sinks.
	may, ok := testLibraries[need]
	allowed := ok && (may == nil || slices.Contains(may, folder))
	if !used && !allowed && folder != "cmd/waybill" {
		return folder + "/go.mod requires " + need + " only for tests, which belong in internal/e2e"
	}
	return ""
}

// TestModulesAreChecked: the checks find what they look for.
func TestModulesAreChecked(t *testing.T) {
	var work goWork
	var mod goMod
	if err := json.Unmarshal([]byte(`{"Go":"1.26.0","Use":[{"DiskPath":"./store/a"}]}`), &work); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		`{"Go":"1.26.0"}`:                                  0,
		`{"Go":"1.25.0"}`:                                  1,
		`{"Go":"1.26.0","Toolchain":"go1.26.8"}`:           1,
		`{"Go":"1.26.0","Replace":[{"Old":{"Path":"x"}}]}`: 1,
	} {
		mod = goMod{folder: "store/a"}
		if err := json.Unmarshal([]byte(text), &mod); err != nil {
			t.Fatal(err)
		}
		if got := judgeModules(work, []goMod{mod}); len(got) != want {
			t.Errorf("%s gives %v", text, got)
		}
	}
	if got := judgeModules(work, []goMod{{folder: "store/b", Go: "1.26.0"}}); len(got) != 1 {
		t.Errorf("a module that is not in go.work gives %v", got)
	}
	mod = goMod{folder: apart[0]}
	if err := json.Unmarshal([]byte(`{"Go":"1.26.0","Require":[{"Path":"github.com/waybillhq/waybill"},{"Path":"example.com/x"}]}`), &mod); err != nil {
		t.Fatal(err)
	}
	if got := judgeModules(work, []goMod{mod}); len(got) != 1 {
		t.Errorf("a module apart that requires one of go.work gives %v", got)
	}
	for len(work.Use) <= maxModules {
		work.Use = append(work.Use, work.Use[0])
	}
	if got := judgeModules(work, nil); len(got) != 1 {
		t.Errorf("%d modules give %v", len(work.Use), got)
	}
	for _, tc := range []struct {
		folder, need string
		used, fine   bool
	}{
		{"broker/natsbroker", "github.com/nats-io/nats.go", true, true},
		{"broker/natsbroker", "github.com/nats-io/nats-server/v2", true, false},
		{"broker/natsembed", "github.com/nats-io/nats-server/v2", true, true},
		{"broker/redisbroker", "github.com/redis/go-redis/v9", false, false},
		{"broker/redisbroker", "go.uber.org/goleak", false, true},
		{"broker/natsembed", "github.com/nats-io/nats.go", false, true},
		{"broker/natsbroker", "github.com/nats-io/nats.go", false, false},
	} {
		if got := judgeRequirement(tc.folder, tc.need, tc.used); (got == "") != tc.fine {
			t.Errorf("%s with %s, used is %v: %q", tc.folder, tc.need, tc.used, got)
		}
	}
}

// owner returns the folder of the module that a folder belongs to.
func owner(mods []goMod, folder string) string {
	found := "."
	for _, mod := range mods {
		if (folder == mod.folder || strings.HasPrefix(folder, mod.folder+"/")) && len(mod.folder) > len(found) {
			found = mod.folder
		}
	}
	return found
}

// provider returns the requirement that an import comes from, or "".
func (m goMod) provider(imported string) string {
	found := ""
	for _, need := range m.Require {
		if (imported == need.Path || strings.HasPrefix(imported, need.Path+"/")) && len(need.Path) > len(found) {
			found = need.Path
		}
	}
	return found
}

// readModules reads go.work and all go.mod files.
func readModules(t *testing.T) (goWork, []goMod) {
	t.Helper()
	root := docblock.Root(t)
	read := func(into any, kind, file string) {
		t.Helper()
		out, err := goIn(t, filepath.Dir(file), kind, "edit", "-json", file)
		if err == nil {
			err = json.Unmarshal([]byte(out), into)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, out)
		}
	}
	var work goWork
	read(&work, "work", filepath.Join(root, "go.work"))
	var mods []goMod
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := entry.Name(); entry.IsDir() && (base == "testdata" || name != root && strings.HasPrefix(base, ".")) {
			return filepath.SkipDir
		}
		if entry.Name() != "go.mod" {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(name))
		mod := goMod{folder: filepath.ToSlash(folder)}
		read(&mod, "mod", name)
		mods = append(mods, mod)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(mods) < len(work.Use) || len(mods) == 0 {
		t.Fatalf("%d go.mod files were found, and go.work has %d modules", len(mods), len(work.Use))
	}
	return work, mods
}
