package orm_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

const page = "docs/orm.md"

// TestDocsAreTested: every Go block of the page occurs verbatim in the tested
// files.
func TestDocsAreTested(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	sources := readAll(t, files...)
	for _, block := range docblock.Blocks(t, page, "go") {
		if !strings.Contains(sources, "\n"+block) {
			first, _, _ := strings.Cut(block, "\n")
			t.Errorf("%s: this block is not in the tested files as it stands: %s", page, first)
		}
	}
}

// TestRecipesAreDocumented: every recipe of the tested files is on the page.
func TestRecipesAreDocumented(t *testing.T) {
	files, err := filepath.Glob("recipe_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Join(docblock.Blocks(t, page, "go"), "\n")
	recipes := regexp.MustCompile(`(?m)^func ((save|in|join)[A-Z]\w*|[a-z]+Over)\(`).FindAllString(readAll(t, files...), -1)
	if len(recipes) == 0 {
		t.Fatal("found no recipes")
	}
	for _, recipe := range recipes {
		if !strings.Contains(blocks, recipe) {
			t.Errorf("%s does not show %s…)", page, recipe)
		}
	}
}

// notLibraries matches requirements that the page does not cover.
var notLibraries = regexp.MustCompile(`waybill|goleak|pgx`)

// TestDocsVersions: the page names the tested versions.
func TestDocsVersions(t *testing.T) {
	text := readAll(t, filepath.Join(docblock.Root(t), page))
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	sources, libraries := readAll(t, append(files, "ent/client.go")...), 0
	direct := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)$`).FindAllStringSubmatch(readAll(t, "../go.mod"), -1)
	for _, m := range direct {
		imported := strings.Contains(sources, `"`+m[1]+`"`) || strings.Contains(sources, `"`+m[1]+`/`)
		if !imported || notLibraries.MatchString(m[1]) {
			continue
		}
		libraries++
		if !strings.Contains(text, "`"+m[1]+"` "+m[2]) {
			t.Errorf("%s does not name %s %s", page, m[1], m[2])
		}
	}
	if libraries < 4 { // sqlx, gorm, bun, ent
		t.Errorf("the tested files import %d of the libraries in go.mod", libraries)
	}
	_, version, _ := strings.Cut(readAll(t, "sqlc/pgxorders/db.go"), "sqlc ")
	version, _, _ = strings.Cut(version, "\n")
	if !strings.Contains(text, "`github.com/sqlc-dev/sqlc` "+version) {
		t.Errorf("%s does not name sqlc %s", page, version)
	}
}

func readAll(t *testing.T, files ...string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
