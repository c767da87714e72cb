package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/jobs"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/docblock"
)

// TestDocs checks that the tables of docs/cli.md match the program. -update
// writes them.
func TestDocs(t *testing.T) {
	path := filepath.Join(docblock.Root(t), "docs", "cli.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\r\n", "\n")
	want := between(t, page, "settings", settingsTable())
	want = between(t, want, "sinks", sinksTable())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != page {
		t.Error("docs/cli.md differs from the program; go test ./internal/command -run TestDocs -update writes it")
	}
	for _, name := range command.Names() {
		if !strings.Contains(page, "`"+strings.TrimPrefix(name, "waybill ")) {
			t.Errorf("docs/cli.md does not name the command %s", name)
		}
	}
	for _, name := range append(settings.JobKeys(), jobs.Kinds()...) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/cli.md does not name %s of jobs", name)
		}
	}
}

// between replaces the text between two marks.
func between(t *testing.T, page, mark, text string) string {
	t.Helper()
	begin, end := "<!-- begin "+mark+" -->\n", "<!-- end "+mark+" -->\n"
	before, rest, ok := strings.Cut(page, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/cli.md has no marks for %s", mark)
	}
	return before + begin + text + end + after
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| key in the file | flag | variable | default | unit | meaning |\n|---|---|---|---|---|---|\n")
	for _, k := range settings.Table() {
		shown := "`" + k.Default + "`"
		if k.Default == "" {
			shown = "none"
		}
		help := k.Help
		if k.Daemon {
			help += ". For the whole process"
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | %s | %s | %s |\n", k.Name, k.Flag(), k.Variable(), shown, k.Unit, help)
	}
	return b.String()
}

func sinksTable() string {
	var b strings.Builder
	b.WriteString("| begins with | form | what it is |\n|---|---|---|\n")
	for _, kind := range connect.SinkKinds() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", strings.Join(kind.Schemes, "`, `"), kind.Form, kind.Help)
	}
	return b.String()
}
