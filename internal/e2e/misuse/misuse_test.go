package misuse_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompilerRefuses builds every program in testdata and requires an error on
// each marked line, and on no other.
func TestCompilerRefuses(t *testing.T) {
	programs, err := filepath.Glob("testdata/*/main.go")
	if err != nil || len(programs) < 5 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	// -e: all errors, not only ten
	args := []string{"build", "-gcflags=-e", "-o", os.DevNull}
	for _, program := range programs {
		args = append(args, "./"+filepath.Dir(program))
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err == nil {
		t.Fatal("all of it compiles")
	}
	// testdata/pool/main.go:23:25: cannot use pool (…) as pgx.Tx value …
	complaints := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(testdata/\S+\.go:\d+):\d+: (.*)$`).FindAllStringSubmatch(string(out), -1) {
		complaints[m[1]] += m[2] + "\n"
	}
	for _, program := range programs {
		for line, want := range marked(t, program) {
			got := complaints[line]
			delete(complaints, line)
			switch {
			case got == "":
				t.Errorf("%s compiles, want it refused: %s", line, want)
			case !strings.Contains(got, want):
				t.Errorf("%s is refused with %q, want %q", line, got, want)
			}
		}
	}
	for line, got := range complaints {
		t.Errorf("%s is refused, and should not be: %s", line, got)
	}
	if t.Failed() {
		t.Logf("the compiler said:\n%s", out)
	}
}

// marked returns the lines of a program that must be rejected, by file:line,
// with the expected text.
func marked(t *testing.T, program string) map[string]string {
	t.Helper()
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	lines := map[string]string{}
	scan := bufio.NewScanner(f)
	for n := 1; scan.Scan(); n++ {
		if _, want, ok := strings.Cut(scan.Text(), "// refused: "); ok {
			lines[fmt.Sprintf("%s:%d", program, n)] = want
		}
	}
	if err := scan.Err(); err != nil || len(lines) == 0 {
		t.Fatalf("%s: %d lines are marked, %v", program, len(lines), err)
	}
	return lines
}
