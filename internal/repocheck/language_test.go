package repocheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/waybillhq/waybill/internal/docblock"
)

// banned are words that the glossary replaces, British spellings, and
// references to lists that are not in the repository.
var banned = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"some" + "body", "no" + "body", "any" + "body", "every" + "body", "who" + "ever",
	"in ha" + "nd", "put o" + "ff", "puts o" + "ff", "putting o" + "ff", "set asi" + "de", "for ev" + "er",
	"behav" + "iour\\w*", "neigh" + "bour\\w*", "col" + "our\\w*", "fav" + "our\\w*", "hon" + "our\\w*",
	"serial" + "ise\\w*", "author" + "ise\\w*", "recogn" + "ise\\w*", "enrol" + "ment", "acknowledge" + "ments?",
	"seed docu" + "ments?", "protocol \\d+", "failure mode \\d+",
}, "|") + `)\b`)

// names are identifiers and accounts of other systems.
var names = strings.NewReplacer("http.NoB"+"ody", "", `"nob`+`ody"`, "")

// maxComment is the width of a comment line in columns; a tab counts four.
const maxComment = 80

// TestLanguage: code, documentation and tests use the words of
// docs/glossary.md, and comments fit their columns.
func TestLanguage(t *testing.T) {
	root := docblock.Root(t)
	findings := 0
	report := func(file string, line int, what string) {
		if findings++; findings <= 50 {
			t.Errorf("%s:%d: %s", file, line, what)
		}
	}
	walkText(t, root, func(file string, text []byte) {
		for n, line := range strings.Split(string(text), "\n") {
			if word := banned.FindString(names.Replace(line)); word != "" {
				report(file, n+1, "banned: "+word)
			}
		}
		for _, line := range wideComments(t, file, text) {
			report(file, line, "the comment is wider than 80 columns")
		}
	})
	if findings > 50 {
		t.Errorf("%d findings", findings)
	}
}

// walkText calls fn for each source and documentation file that people write.
func walkText(t *testing.T, root string, fn func(file string, text []byte)) {
	t.Helper()
	extensions := map[string]bool{".go": true, ".md": true, ".yml": true, ".yaml": true, ".mutants": true, ".sql": true}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != root && strings.HasPrefix(name, ".") && name != ".github" || path == filepath.Join(root, "internal", "e2e", "orm", "ent") {
				return filepath.SkipDir
			}
			return nil
		}
		if !extensions[filepath.Ext(path)] {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		fn(file, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wideComments returns the lines of a Go or SQL file whose comments are too
// wide.
func wideComments(t *testing.T, file string, text []byte) []int {
	t.Helper()
	switch filepath.Ext(file) {
	case ".go":
		return wideGoComments(t, file, text)
	case ".sql":
		return wideSQLComments(text)
	}
	return nil
}

func wideSQLComments(text []byte) []int {
	var wide []int
	for n, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "--") && utf8.RuneCountInString(line) > maxComment {
			wide = append(wide, n+1)
		}
	}
	return wide
}

// wideGoComments has no limit for directives, preformatted lines and the output
// of examples.
func wideGoComments(t *testing.T, file string, text []byte) []int {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	var wide []int
	for _, group := range parsed.Comments {
		output := false
		for _, c := range group.List {
			output = output || strings.Contains(strings.ToLower(c.Text), "output:")
			at := set.Position(c.Pos())
			if !output && isProse(c) && strings.TrimSpace(lines[at.Line-1][:at.Column-1]) == "" &&
				utf8.RuneCountInString(strings.ReplaceAll(lines[at.Line-1], "\t", "    ")) > maxComment {
				wide = append(wide, at.Line)
			}
		}
	}
	return wide
}

func isProse(c *ast.Comment) bool {
	text, ok := strings.CutPrefix(c.Text, "// ")
	return ok && !strings.HasPrefix(text, " ") && !strings.HasPrefix(text, "\t") && !strings.HasPrefix(text, "|") && strings.Contains(text, " ")
}

// TestLanguageIsChecked: the check finds what it looks for.
func TestLanguageIsChecked(t *testing.T) {
	for _, line := range []string{"when some" + "body asks", "it is put o" + "ff", "the neigh" + "bours", "see protocol" + " 16"} {
		if !banned.MatchString(line) {
			t.Errorf("%q passes", line)
		}
	}
	words := strings.Repeat("word ", 20)
	for file, text := range map[string]string{"p.go": "package p\n\n// " + words + "\nvar x int\n", "p.sql": "SELECT 1\n-- next\n-- " + words + "\n"} {
		if got := wideComments(t, file, []byte(text)); len(got) != 1 || got[0] != 3 {
			t.Errorf("%s: a comment of 100 columns gives %v, want line 3", file, got)
		}
	}
}
