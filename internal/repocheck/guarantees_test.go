package repocheck_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestGuarantees: each guarantee of docs/guarantees.md has a unique name and at
// least one test that exists.
func TestGuarantees(t *testing.T) {
	root := docblock.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("^`[a-z0-9]+(-[a-z0-9]+)+`$")
	seen := map[string]bool{}
	for n, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || cells[0] == "name" {
			continue
		}
		if len(cells) != 3 || !name.MatchString(cells[0]) {
			t.Errorf("line %d: want name, guarantee, tests", n+1)
			continue
		}
		if seen[cells[0]] {
			t.Errorf("line %d: %s stands twice", n+1, cells[0])
		}
		seen[cells[0]] = true
		tests := quoted.FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 {
			t.Errorf("line %d: %s has no test", n+1, cells[0])
		}
		for _, m := range tests {
			if problem := testExists(t, root, m[1]); problem != "" {
				t.Errorf("line %d: %s", n+1, problem)
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d guarantees were read", len(seen))
	}
}

// TestGuaranteeTestsAreLookedUp: a reference to a missing test is detected.
func TestGuaranteeTestsAreLookedUp(t *testing.T) {
	root := docblock.Root(t)
	for _, name := range []string{
		"relay TestNoSuchThing", "relay/relaytest no_such_check", "store/drivertest no_such_behavior",
		"relay/internal/ledger TestScript/no-such-rule", "relay/internal/ledger TestNoScript/holds-are-rows",
	} {
		if testExists(t, root, name) == "" {
			t.Errorf("%s counts as a test", name)
		}
	}
}

// TestProtocol: each rule of docs/protocol.md has a unique name, the
// interleaving that breaks it, and at least one test that exists.
func TestProtocol(t *testing.T) {
	root := docblock.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("^[a-z0-9]+(-[a-z0-9]+)+$")
	seen := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		section, _, _ = strings.Cut(section, "\n## ")
		rule, body, _ := strings.Cut(section, "\n")
		if !name.MatchString(rule) || seen[rule] {
			t.Errorf("%s: the name is not valid, or stands twice", rule)
		}
		seen[rule] = true
		_, names, found := strings.Cut(body, "\nTests: ")
		tests := quoted.FindAllStringSubmatch(names, -1)
		if !found || len(tests) == 0 || !strings.Contains(body, "\nInterleaving: ") {
			t.Errorf("%s: there is no interleaving, or no test", rule)
		}
		for _, m := range tests {
			if problem := testExists(t, root, m[1]); problem != "" {
				t.Errorf("%s: %s", rule, problem)
			}
			if _, script, ok := strings.Cut(m[1], "TestScript/"); ok && script != rule {
				t.Errorf("%s: %s is the script of another rule", rule, script)
			}
		}
		_, err := os.Stat(filepath.Join(root, "relay/internal/ledger/testdata", rule+".txt"))
		if err == nil && !strings.Contains(names, "TestScript/"+rule+"`") {
			t.Errorf("%s: its script is not named", rule)
		}
	}
	if len(seen) < 40 {
		t.Errorf("only %d rules were read", len(seen))
	}
}

// testExists returns an error text for the name of a test, or "". The name of a
// script follows the name of the function that runs it.
func testExists(t *testing.T, root, name string) string {
	t.Helper()
	folder, test, _ := strings.Cut(name, " ")
	if folder == "store/drivertest" {
		matrix, err := os.ReadFile(filepath.Join(root, "internal/storematrix/testdata/matrix.txt"))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(test) + ` +\|`).Match(matrix) {
			return name + ": the matrix has no such row"
		}
		return ""
	}
	if folder == "relay/relaytest" || folder == "inbox/inboxtest" || folder == "idempotency/idemtest" {
		return checkExists(t, root, folder, test)
	}
	test, script, isScript := strings.Cut(test, "/")
	if _, err := os.Stat(filepath.Join(root, folder, "testdata", script+".txt")); isScript && err != nil {
		return name + ": there is no such script"
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(`).Match(text) {
			return ""
		}
	}
	return name + " does not exist"
}

// checkExists returns an error text for the name of a check of a conformance
// suite, or "".
func checkExists(t *testing.T, root, folder, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `{name: "`+name+`"`) {
			return ""
		}
	}
	return folder + " has no check " + name
}

// TestLinks: links in the documentation to files of the repository resolve.
func TestLinks(t *testing.T) {
	root := docblock.Root(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		pages = append(pages, filepath.Join(root, name))
	}
	link := regexp.MustCompile(`\[[^\]\[]+\]\(([^)#\s"]+)[^)]*\)`)
	fenced := regexp.MustCompile("(?s)\n```.*?\n```")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
}
