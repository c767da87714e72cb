package repocheck_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// TestWritingAStore runs the example of docs/writing-a-store.md, a store with
// one role, as the module of a third party outside the repository. The code of
// the page is that of the example.
func TestWritingAStore(t *testing.T) {
	root, dir := docblock.Root(t), t.TempDir()
	blocks := docblock.Blocks(t, "docs/writing-a-store.md", "go")
	names := []string{"logstore.go", "logstore_test.go"}
	if len(blocks) != len(names) {
		t.Fatalf("the page has %d blocks of Go, want one for each of %q", len(blocks), names)
	}
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range names {
		text, err := os.ReadFile(filepath.Join("testdata", "logstore", name))
		if err != nil {
			t.Fatal(err)
		}
		if blocks[i] != string(text) {
			t.Errorf("block %d of the page differs from testdata/logstore/%s", i+1, name)
		}
		write(name, text)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write("go.sum", sum)
	write("go.mod", fmt.Appendf(nil, "module example.com/logstore\n\ngo 1.25.0\n\nrequire %[1]s v0.0.0\n\nreplace %[1]s => %[2]s\n",
		"github.com/waybillhq/waybill", root))
	args := []string{"test", "-count=1", "."}
	if testing.Short() {
		args = append(args, "-short")
	}
	if out, err := goIn(t, dir, args...); err != nil {
		t.Errorf("the example fails outside the repository: %v\n%s", err, out)
	}
}
