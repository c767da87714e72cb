package pgstore

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares got with a file of testdata, or writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wants, gots := strings.SplitAfter(string(want), "\n"), strings.SplitAfter(got, "\n")
	for i := range max(len(wants), len(gots)) {
		var w, g string
		if i < len(wants) {
			w = wants[i]
		}
		if i < len(gots) {
			g = gots[i]
		}
		if w != g {
			t.Fatalf("%s:%d: got %q, want %q; -update writes the file", path, i+1, g, w)
		}
	}
}

// TestSettleStatements compares the statements of all kinds of settlements with
// testdata/settle.sql, testdata/settle_divert.sql and
// testdata/settle_backlog.sql.
func TestSettleStatements(t *testing.T) {
	as := func(s string) string { return s }
	outbox, backlog := settleStatements(as), backlogSettleStatements(as)
	golden(t, "settle.sql", settleText(outbox, func(k settleKind) bool { return !k.divert }))
	golden(t, "settle_divert.sql", settleText(outbox, func(k settleKind) bool { return k.divert && !k.retry && !k.dead }))
	golden(t, "settle_backlog.sql", settleText(backlog, func(k settleKind) bool { return !k.divert }))
}

// settleText returns the statements of some kinds.
func settleText(statements map[settleKind]string, which func(settleKind) bool) string {
	var b strings.Builder
	for _, k := range settleKinds() {
		if !which(k) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString("--")
		for _, part := range []struct {
			in   bool
			name string
		}{{k.done, "done"}, {k.late, "late"}, {k.history, "history"}, {k.retry, "retry"}, {k.dead, "dead"}, {k.divert, "divert"}} {
			if part.in {
				b.WriteString(" " + part.name)
			}
		}
		b.WriteString("\n" + strings.ReplaceAll(statements[k], eventColumns, "{events}") + ";\n")
	}
	return b.String()
}
