package repocheck_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// example is the folder of the broker in docs/writing-a-broker.md.
const example = "testdata/filebroker"

// TestABrokerOutside runs the tests of a broker that is no part of this
// repository: its module sees exported names only, and the conformance suite
// must be usable from there.
func TestABrokerOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module")
	}
	root, dir := docblock.Root(t), t.TempDir()
	for name, text := range exampleFiles(t) {
		writeFile(t, filepath.Join(dir, name), text)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "go.sum"), string(sums))
	version := goList(t, root, "-m", "-f", "{{.GoVersion}}")
	writeFile(t, filepath.Join(dir, "go.mod"), fmt.Sprintf("module example.com/filebroker\n\ngo %s\n\nrequire %s v0.0.0\n\nreplace %s => %s\n",
		version, module, module, root))
	out, err := goIn(t, dir, "test", "-v", "-count=1", ".")
	if err != nil {
		t.Fatalf("go test: %v\n%s", err, out)
	}
	for _, check := range []string{"order_per_aggregate_with_many_workers", "dead_messages_go_to_the_dead_letters", "end_to_end"} {
		if !strings.Contains(out, "--- PASS: TestConformance/"+check+" ") {
			t.Errorf("the check %s did not run:\n%s", check, out)
		}
	}
}

// TestWritingABroker: the guide shows the example, all of it and nothing else.
func TestWritingABroker(t *testing.T) {
	files := exampleFiles(t)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, block := range docblock.Blocks(t, "docs/writing-a-broker.md", "go") {
		found := false
		for _, name := range names {
			if before, after, ok := strings.Cut(files[name], block); ok && !found {
				found, files[name] = true, before+after
			}
		}
		if !found {
			t.Errorf("the block is not in the example, or is shown twice:\n%s", block)
		}
	}
	for _, name := range names {
		if rest := strings.TrimSpace(files[name]); rest != "" {
			t.Errorf("%s: the guide does not show\n%s", name, rest)
		}
	}
}

// exampleFiles returns the example's files by name.
func exampleFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(example, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(text)
	}
	if len(files) < 4 {
		t.Fatalf("%d files in %s", len(files), example)
	}
	return files
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
