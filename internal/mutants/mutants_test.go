package mutants_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/mutants"
)

// TestListIsUpToDate: every mutant still applies, to shipped code, and its test
// exists.
func TestListIsUpToDate(t *testing.T) {
	root := docblock.Root(t)
	all, err := mutants.Read(os.DirFS("."), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("only %d mutants are listed", len(all))
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.Name] {
			t.Errorf("%s: the name %q is taken", m.Where, m.Name)
		}
		seen[m.Name] = true
		if strings.HasSuffix(m.File, "_test.go") {
			t.Errorf("%s: %s is a test, not shipped code", m.Where, m.File)
		}
		text, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Errorf("%s: %v", m.Where, err)
			continue
		}
		changed, err := m.Apply(string(text))
		if err != nil {
			t.Error(err)
		} else if changed == string(text) {
			t.Errorf("%s: nothing changes", m.Where)
		}
		name, _, _ := strings.Cut(m.Pattern, "/")
		if !hasTest(t, filepath.Join(root, m.Folder), strings.Trim(name, "^$")) {
			t.Errorf("%s: %s has no test named %s", m.Where, m.Folder, name)
		}
	}
}

// TestBugsOfTheSimulatorAreUpToDate: every bug that the simulator has to find
// still applies.
func TestBugsOfTheSimulatorAreUpToDate(t *testing.T) {
	root := docblock.Root(t)
	bugs, err := mutants.Read(os.DirFS(filepath.Join(root, "internal/sim")), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	if len(bugs) < 25 {
		t.Errorf("only %d bugs are listed", len(bugs))
	}
	for _, m := range bugs {
		text, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Errorf("%s: %v", m.Where, err)
			continue
		}
		if changed, err := m.Apply(string(text)); err != nil || changed == string(text) {
			t.Errorf("%s: %q does not apply: %v", m.Where, m.Name, err)
		}
	}
}

// TestConformanceNamesExist: a mutant that a store's conformance suite detects
// names a behavior of the suite and, if any, a check of it. A pattern without a
// match would run nothing.
func TestConformanceNamesExist(t *testing.T) {
	root := docblock.Root(t)
	all, err := mutants.Read(os.DirFS("."), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	matrix, err := os.ReadFile(filepath.Join(root, "internal/storematrix/testdata/matrix.txt"))
	if err != nil {
		t.Fatal(err)
	}
	behaviors := regexp.MustCompile(`(?m)^\| ([a-z_]+) `).FindAllStringSubmatch(string(matrix), -1)
	files, err := filepath.Glob(filepath.Join(root, "store/drivertest/check_*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var checks [][]string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := strings.NewReplacer(" ", "_", ",", "").Replace(strings.Join(regexp.MustCompile(`name: "[^"]*"`).FindAllString(string(text), -1), "\n"))
		checks = append(checks, regexp.MustCompile(`"(.*)"`).FindAllStringSubmatch(names, -1)...)
	}
	matches := func(pattern string, names [][]string) bool {
		re, err := regexp.Compile(pattern)
		return err == nil && slices.ContainsFunc(names, func(m []string) bool { return re.MatchString(m[1]) })
	}
	found := 0
	for _, m := range all {
		parts := strings.Split(m.Pattern, "/")
		if !strings.HasPrefix(m.Folder, "store/") || strings.Trim(parts[0], "^$") != "TestConformance" {
			continue
		}
		parts = parts[1:]
		if m.Folder == "store/mysqlstore" && len(parts) > 0 {
			parts = parts[1:] // the server
		}
		if len(parts) > 0 && !matches(parts[0], behaviors) {
			t.Errorf("%s: the suite has no behavior %s", m.Where, parts[0])
		}
		if len(parts) > 1 && !matches(parts[1], checks) {
			t.Errorf("%s: the suite has no check %s", m.Where, parts[1])
		}
		found++
	}
	if found < 50 || len(behaviors) < 50 || len(checks) < 100 {
		t.Errorf("only %d mutants, %d behaviors and %d checks were read", found, len(behaviors), len(checks))
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\w*\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(text) {
			return true
		}
	}
	return false
}

// TestMutantsSurviveRenames renames each identifier of each mutant's lines, and
// the declaration around them. The mutant then applies to the renamed code.
func TestMutantsSurviveRenames(t *testing.T) {
	root := docblock.Root(t)
	all, err := mutants.Read(os.DirFS("."), "testdata")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, m := range all {
		if filepath.Ext(m.File) != ".go" {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Fatal(err)
		}
		whole := string(raw)
		for _, name := range m.Identifiers() {
			text := whole
			if name != m.In {
				text = m.Part(whole) // shorter, so faster
			}
			changed, err := m.Apply(text)
			if err != nil {
				t.Fatal(err)
			}
			tried++
			names := map[string]string{name: name + "Renamed"}
			got, err := m.Apply(mutants.Rename(text, names))
			if err != nil {
				t.Errorf("%s is renamed: %v", name, err)
			} else if mutants.Shape(got) != mutants.Shape(mutants.Rename(changed, names)) {
				t.Errorf("%s: with %s renamed, the mutant changes another place", m.Where, name)
			}
		}
	}
	if tried < 1000 {
		t.Errorf("only %d renames were tried", tried)
	}
}

// TestNoMutantWithoutItsCode: where the code is gone, the mutant does not apply
// elsewhere.
func TestNoMutantWithoutItsCode(t *testing.T) {
	m := mutants.Mutant{File: "x.go", In: "f", Hunks: []mutants.Hunk{{Old: "\tstop(a, b)\n", New: "\tstop(b, a)\n"}}}
	for _, text := range []string{
		"package x\n\nfunc f() {\n\tstop(a)\n}\n",
		"package x\n\nfunc f() {\n\tstop(a, a)\n}\n",
		"package x\n\nfunc f() {\n\thalt(a, c)\n\tend(a, c)\n}\n",
	} {
		if got, err := m.Apply(text); err == nil {
			t.Errorf("the mutant applies to\n%s\nand gives\n%s", text, got)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for _, text := range []string{
		"file: a.go\n",
		"mutant: x\nfile: a.go\n",
		"mutant: x\nfile: a.go\ntest: a TestX\nwhat: y\n",
	} {
		if _, err := mutants.Read(fstest.MapFS{"d/x.mutants": {Data: []byte(text)}}, "d"); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func ExampleMutant_Apply() {
	files := fstest.MapFS{"list/x.mutants": {Data: []byte("mutant: one and one\nfile: sum.go\ntest: . TestSum\n- \treturn a + b\n+ \treturn a - b\n")}}
	all, err := mutants.Read(files, "list")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := all[0].Apply("func sum(a, b int) int {\n\treturn a + b\n}\n")
	fmt.Print(text, err)
	// Output:
	// func sum(a, b int) int {
	// 	return a - b
	// }
	// <nil>
}
